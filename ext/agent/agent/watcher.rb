# frozen_string_literal: true

module Tracepoint
  module Agent
    # A thread that looks after what the agent has left in the program. It may outlast the
    # agent, so it is not in the agent's group.
    class Watcher
      # Gives the block this.
      #
      # @raise [ThreadError] if there can be no thread
      def initialize
        @thread = Thread.new do
          Native.own(true)
          yield self
        ensure
          Native.own(false)
        end
        @thread.thread_variable_set(:rbtrace_agent, true)
        @thread.name = "rbtrace agent"
        @thread.report_on_exception = false
        leave_group
      end

      # Kernel's own: the program may have another. To be called in the block.
      def pause(seconds)
        Kernel.sleep(seconds)
      end

      # Ends a pause. No Mutex is needed for it, so signals' handlers can do this.
      def wake
        @thread.wakeup
      rescue ThreadError # it has ended, or is the parent's
        nil
      end

      private

      def leave_group
        ThreadGroup::Default.add(@thread)
      rescue ThreadError # the program has closed that group
        nil
      end
    end
  end
end
