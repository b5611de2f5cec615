# frozen_string_literal: true

module Tracepoint
  module Agent
    # One tracer.
    class Connection
      HELLO_SECONDS = 5

      attr_reader :wire, :peer_pid

      # What runs for it, until that is answered.
      attr_accessor :evaluation

      # The pid of a stopped copy: nobody's, until it was read.
      attr_writer :copy

      def initialize(socket, peer_pid)
        @wire = Wire.new(socket)
        @peer_pid = peer_pid
        @commands = Commands.new(self)
        @due = 0.0
        @is_known = false
      end

      def serve
        greet
        @is_known = true
        loop { answer(next_request) }
      rescue Broken => e
        refuse(0, e)
      rescue Gone => e
        # Unlike at the end of a stream there was something that it did not read.
        end_copy if e.cause.is_a?(SystemCallError)
      end

      def close
        Agent.disarm(self)
        Hold.leave(@peer_pid) if @is_known
        @wire.socket.close
      rescue IOError
        nil
      end

      def refuse(request, refusal)
        @wire.reply(request, refusal.to_reply, Wire::ERROR)
      rescue Gone
        nil
      end

      def armed?
        Agent.armed_by.equal?(self)
      end

      def arm
        reply, files = Agent.arm(self) { yield }
        @wire.reply_with(@request, reply.merge(held: Hold.on?), files)
        Hold.release
        nil
      ensure
        files&.each(&:close)
      end

      def disarm
        Agent.disarm(self)
      end

      def binding_kept
        @binding_kept ||= TOPLEVEL_BINDING.dup
      end

      private

      def greet
        frame = @wire.read(Agent.now + HELLO_SECONDS)
        raise Broken, "hello comes first" unless frame.type == Wire::REQUEST && frame.flags.zero?

        map = Values.decode_map(frame.payload)
        raise Broken, "hello comes first" unless map["command"] == "hello"

        answer([frame.request, map], Broken)
      end

      def end_copy
        Process.kill(:KILL, @copy) if @copy
      rescue SystemCallError
        nil
      end

      # A request, with the DATA frames before it if it came in such.
      def next_request
        long = +""
        loop do
          await if Ractors::PERIOD
          frame = @wire.read
          next if frame.type == Wire::CANCEL
          raise Broken, "0 is no request" if frame.request.zero?

          if frame.type == Wire::DATA
            raise Broken, "request too long" if (long << frame.payload).bytesize > Wire::MAX_REQUEST
          else
            return [frame.request, Values.decode_map(frame.flags == 1 ? long : frame.payload)]
          end
        end
      end

      # What is armed is looked after meanwhile, however often there is a request.
      def await
        while armed?
          left = @due - Agent.now
          return if left.positive? && IO.select([@wire.socket], nil, nil, left)

          Ractors.renew
          @due = Agent.now + Ractors::PERIOD
        end
      end

      def answer((request, map), fatal = nil)
        raise Broken, "0 is no request" if request.zero?

        @request = request
        @copy = nil
        reply = @commands.call(request, map)
        @wire.reply(request, reply) if reply
      rescue Gone, Broken
        raise
      rescue Refusal => e
        refuse(request, e)
        raise Gone if fatal
      rescue StandardError, NoMemoryError, ScriptError, SystemStackError => e
        refuse(request, Refusal.new("system", "#{e.class}: #{e.message}"))
      ensure
        @evaluation = nil
      end
    end
  end
end
