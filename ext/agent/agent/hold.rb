# frozen_string_literal: true

module Tracepoint
  module Agent
    # Holds a program that a tracer starts until the tracer has armed: docs/agent.md,
    # "The start of a program".
    module Hold
      VARIABLE = "TRACEPOINT_AGENT_WAIT"
      FORM = /\A(\d{1,7}):(\d{1,10})\z/.freeze
      SLICE = 0.005
      @is_on = false
      @tracer = nil

      class << self
        # Return whether the program is still held.
        def on?
          @is_on
        end

        # Let the program start: the tracer has what it needs.
        def release
          @is_on = false
        end

        # Let the program start if this process, which has hung up, was its tracer.
        def leave(pid)
          release if pid == @tracer
        end

        # Child processes and executed programs inherit the variable. Only an executed
        # program still has the tracer as its parent.
        def wait
          milliseconds, @tracer = numbers
          return unless @tracer && @tracer == Process.ppid && Thread.current == Thread.main

          @is_on = true
          deadline = Agent.now + milliseconds / 1000.0
          sleep SLICE while @is_on && Process.ppid == @tracer && Agent.now < deadline
        ensure
          @is_on = false
        end

        private

        def numbers
          FORM.match(ENV[VARIABLE].to_s)&.captures&.map(&:to_i)
        end
      end
    end
  end
end
