# frozen_string_literal: true

module Tracepoint
  module Agent
    # Limits how long work in the agent keeps the program waiting for the GVL.
    class Slices
      SECONDS = 0.002 # a single step may take longer

      # Return the CPU seconds that this thread spends in the block.
      def self.cpu
        before = Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID)
        yield
        Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID) - before
      end

      def initialize
        @since = Agent.now
      end

      # Call often: after each slice, lets other threads run.
      def pass
        return if Agent.now - @since < SECONDS

        Thread.pass
        @since = Agent.now
      end
    end
  end
end
