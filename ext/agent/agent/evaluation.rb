# frozen_string_literal: true

module Tracepoint
  module Agent
    # Evaluates code at top level, in a separate thread.
    class Evaluation
      KILL_SECONDS = 1
      FILE = "(rbtrace)"

      # redirect: true if $stdout and $stderr write to the pipes
      def initialize(code, file, line, binding, redirect)
        @code = code
        @file = file
        @line = line
        @binding = binding
        @redirect = redirect
      end

      def run(wire, request, limit)
        out, out_end = IO.pipe
        err, err_end = IO.pipe
        # Binary mode: with Encoding.default_internal, which Rails sets, IO would convert
        # the output, and raise on invalid text.
        [out, out_end, err, err_end].each(&:binmode)
        @thread = thread = start(out_end, err_end)
        Pump.new(wire, request, { 1 => out, 2 => err }, limit).run { !thread.alive? }
        thread.value
      rescue Broken
        raise
      rescue Refusal => e
        raise e unless thread && !dead?(thread)

        raise Refusal.new(e.code, "#{e.message}; the code keeps running")
      ensure
        thread&.kill
        [out, out_end, err, err_end].compact.each(&:close)
      end

      # Announce the end of the process; return nil if the code does not listen for it.
      def tell_end
        @thread&.thread_variable_get(:rbtrace_end)&.push(nil)
      end

      private

      def dead?(thread)
        thread.kill
        thread.join(KILL_SECONDS)
      end

      def start(out, err)
        thread = Thread.new do
          apart
          [out, err].each { |io| io.sync = true }
          Redirect.claim(out, err)
          @redirect ? Redirect.around { evaluate } : evaluate
        rescue Exception => e # rubocop:disable Lint/RescueException -- SystemExit would end the program
          failure(e)
        ensure
          [out, err].each(&:close) # wakes the reader
        end
        thread.report_on_exception = false
        thread
      rescue ThreadError => e
        raise Refusal.no_thread(e)
      end

      # Threads that the code starts belong to the program; this one belongs to the agent.
      def apart
        Thread.current.thread_variable_set(:rbtrace_agent, true)
        ThreadGroup::Default.add(Thread.current)
      rescue ThreadError # the program has enclosed that group
        nil
      end

      # Return the result or the failure as a map.
      def evaluate
        started = Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
        value = @binding.eval(@code, @file, @line)
        text = value.inspect
        { value: text.to_s, class: Names.module_text(Names::OBJECT_CLASS.bind_call(value)),
          ns: Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond) - started }
      end

      # Describe the exception without the agent's frames: neither those below the code,
      # nor the frames of a redirected $stdout or $stderr within it.
      def failure(error)
        trace = Array(error.backtrace)
        theirs = trace.reject { |frame| frame.start_with?("#{FOLDER}/") }
        error = unquoted(error) unless trace.first == theirs.first
        Refusal.new("raised", message(error), class: error.class.to_s, backtrace: theirs)
      end

      # The message is code of the program, and may raise SystemExit, which would end it.
      def message(error)
        error.message.to_s
      rescue Exception => e # rubocop:disable Lint/RescueException -- none of these is meant for the program
        "(its message raised #{Names.module_text(Names::OBJECT_CLASS.bind_call(e))})"
      end

      # error_highlight (Ruby 3.1) appends the innermost source line to the message if it
      # can find it.
      def unquoted(error)
        error.clone(freeze: false).tap { |copy| copy.define_singleton_method(:backtrace_locations) { nil } }
      end
    end
  end
end
