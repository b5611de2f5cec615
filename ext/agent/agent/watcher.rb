# frozen_string_literal: true

module Tracepoint
  module Agent
    # A thread that maintains what the agent has installed in the program. It may outlive
    # the agent, so it is not in the agent's group.
    class Watcher
      # Start the thread, which yields this watcher.
      #
      # @raise [ThreadError] if no thread can be started
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

      # Sleep, with Kernel.sleep: the program may define another sleep. Call in the block.
      def pause(seconds)
        Kernel.sleep(seconds)
      end

      # End a pause. This needs no Mutex, so signal handlers may call it.
      def wake
        @thread.wakeup
      rescue ThreadError # the thread has ended, or belongs to the parent
        nil
      end

      private

      def leave_group
        ThreadGroup::Default.add(@thread)
      rescue ThreadError # the program has enclosed that group
        nil
      end
    end
  end
end
