# frozen_string_literal: true

module Tracepoint
  module Agent
    # A child that writes a dump to a pipe. It is a copy of the process at one moment, and
    # runs nothing of the agent but this. Only its final message confirms a complete dump:
    # the program may wait for any child, and thereby take its exit status.
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
      ensure # also if the agent stops and kills this thread
        kill(pid)
        [pipe, pipe_end, why, why_end].compact.each(&:close)
      end

      private

      # In the child. Ruby 3.4 raises if a nonblocking pipe is full. The numbers are F_SETFL
      # and F_GETFL, whose constants would need the library fcntl.
      def write(parent, pipe, why)
        Copy.settle(parent)
        pipe.fcntl(4, pipe.fcntl(3) & ~File::NONBLOCK)
        require "objspace"
        GC.start if @collect
        ObjectSpace.public_send(@method, output: pipe)
        pipe.close
        why.write(DONE)
      rescue Exception => e # rubocop:disable Lint/RescueException -- the parent reports it
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
