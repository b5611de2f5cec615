# frozen_string_literal: true

module Tracepoint
  module Agent
    # Work that must not keep the program waiting for the GVL.
    class Slices
      SECONDS = 0.002 # a step may take as long again, and more

      # CPU seconds of this thread that the block takes
      def self.cpu
        before = Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID)
        yield
        Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID) - before
      end

      def initialize
        @since = Agent.now
      end

      # To be called often: lets others run after each slice.
      def pass
        return if Agent.now - @since < SECONDS

        Thread.pass
        @since = Agent.now
      end
    end
  end
end
