# frozen_string_literal: true

module Tracepoint
  module Agent
    # Forwards the pipes of a job that runs beside the connection. Waits for the job, for
    # the peer to cancel or disconnect, and for the time limit.
    class Pump
      SLICE = 0.1
      SHORT = 0.001
      CHUNK = 65_536

      # pipes: the reading end of each channel
      def initialize(wire, request, pipes, limit)
        @wire = wire
        @request = request
        @pipes = pipes.invert
        @deadline = Agent.now + limit
        @bytes = 0
        @buffer = String.new(encoding: Encoding::BINARY)
      end

      attr_reader :bytes

      # Run until the block reports the end and all output is forwarded.
      def run
        until yield
          # Once its pipes are closed, the job usually ends within moments.
          slice = @pipes.empty? ? SHORT : SLICE
          readable, = IO.select([@wire.socket, *@pipes.keys], nil, nil, (@deadline - Agent.now).clamp(0, slice))
          (readable || []).each { |io| io == @wire.socket ? heed : pass_on(io) }
          late if Agent.now > @deadline
        end
        @pipes.keys.each { |io| nil while pass_on(io) }
      end

      private

      def late
        raise Refusal.new("time", "the time limit passed")
      end

      def heed
        frame = @wire.read
        raise Broken, "a request is under way" unless frame.type == Wire::CANCEL

        raise Refusal.new("cancelled", "cancelled") if frame.request == @request
      end

      def pass_on(pipe)
        bytes = pipe.read_nonblock(CHUNK, @buffer, exception: false)
        return false if bytes == :wait_readable
        return @pipes.delete(pipe) && false if bytes.nil?

        @bytes += bytes.bytesize
        @wire.data(@request, @pipes[pipe], bytes, @deadline) or late
        true
      end
    end
  end
end
