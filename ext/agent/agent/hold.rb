# frozen_string_literal: true

module Tracepoint
  module Agent
    # A program that a tracer starts does nothing before that has armed: docs/agent.md,
    # "The start of a program".
    module Hold
      VARIABLE = "TRACEPOINT_AGENT_WAIT"
      FORM = /\A(\d{1,7}):(\d{1,10})\z/.freeze
      SLICE = 0.005
      @is_on = false
      @tracer = nil

      class << self
        # Is the program still held?
        def on?
          @is_on
        end

        # A tracer has what it needs.
        def release
          @is_on = false
        end

        # The process with this pid has hung up.
        def leave(pid)
          release if pid == @tracer
        end

        # Its children inherit the variable, and so does what it executes: of all these
        # only what is executed is still a child of the tracer.
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
