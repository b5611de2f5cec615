# frozen_string_literal: true

module Tracepoint
  module Agent
    # A child that writes something to a pipe. It is the process, stopped at one
    # moment, and has nothing of the agent's but this. Only what it says at its end
    # tells that all was written: its status may have gone to the program, which
    # may wait for any child.
    class Dump
      DONE = "done"

      def initialize(method, collect)
        @method = method
        @collect = collect
      end

      def run(wire, request, limit)
        pipe, pipe_end = IO.pipe(binmode: true)
        why, why_end = IO.pipe
        parent = Process.pid
        pid = Agent.fork_apart do
          [pipe, why].each(&:close)
          write(parent, pipe_end, why_end)
        end
        [pipe_end, why_end].each(&:close)
        pump = Pump.new(wire, request, { 3 => pipe }, limit)
        pump.run { finished?(pid) }
        said = why.read_nonblock(1000, exception: false)
        return { bytes: pump.bytes } if said == DONE

        raise Refusal.new("system", "the dump failed: #{said.is_a?(String) ? said : reason}")
      ensure # also where the agent is stopped, and this thread killed
        kill(pid)
        [pipe, pipe_end, why, why_end].compact.each(&:close)
      end

      private

      # In the child. Ruby 3.4 raises where a pipe that does not block is full;
      # the numbers are F_SETFL and F_GETFL, for which Ruby has a library.
      def write(parent, pipe, why)
        Copy.settle(parent)
        pipe.fcntl(4, pipe.fcntl(3) & ~File::NONBLOCK)
        require "objspace"
        GC.start if @collect
        ObjectSpace.public_send(@method, output: pipe)
        pipe.close
        why.write(DONE)
      rescue Exception => e # rubocop:disable Lint/RescueException -- it is the parent's to tell
        why.write("#{e.class}: #{e.message}".byteslice(0, 1000))
        raise
      end

      # The dump of a child that could not report.
      def reason
        "its process was ended before it had written everything#{@status && " (#{@status})"}"
      end

      def finished?(pid)
        return true if @finished

        found, @status = Process.wait2(pid, Process::WNOHANG)
        @finished = !found.nil?
      rescue Errno::ECHILD
        @finished = true
      end

      def kill(pid)
        return if pid.nil? || finished?(pid)

        Process.kill(:KILL, pid)
        Process.wait(pid)
      rescue SystemCallError
        nil
      end
    end
  end
end
