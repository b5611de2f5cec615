# frozen_string_literal: true

module Tracepoint
  module Agent
    # One tracer.
    class Connection
      GREETING_SECONDS = 5

      attr_reader :wire, :peer_pid

      # The connection's rights, nil before its proof or the owner's consent.
      attr_reader :level

      # True if it takes one of the server's places.
      attr_reader :placed

      # The command that runs for the client, until it is answered.
      attr_accessor :evaluation

      # The pid of a stopped copy, which nobody ends until the client has read it.
      attr_writer :copy

      # The first method number whose name was not sent yet.
      attr_writer :named

      # consent: the level that it has without a proof
      # server: says whether there is room for one more that has proved
      def initialize(socket, peer_pid, server, consent = nil)
        @server = server
        @wire = Wire.new(socket)
        @peer_pid = peer_pid
        @consent = consent
        @commands = Commands.new(self)
        @due = 0.0
        @named = 0
        # Ruby 2.7 warns of variables that were not set.
        @level = @placed = @proof = @copy = nil
      end

      # refusal: the answer to each command except `stop`
      def serve(refusal = nil)
        greet
        refusal ||= Refusal.new("busy", Server::FULL) unless @placed
        refusal ? serve_stop(refusal) : loop { answer(next_request) }
      rescue Broken => e
        refuse(0, e)
      rescue Gone => e
        # Unlike at the end of a stream there was something that it did not read.
        end_copy if e.cause.is_a?(SystemCallError)
      end

      # Its thread sees the end of the stream, and closes it.
      def hang_up
        @wire.socket.shutdown
      rescue SystemCallError, IOError
        nil
      end

      def close
        Agent.disarm(self) if armed? # which waits for another connection's arming
        Hold.leave(@peer_pid) if @level
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

      # Has its client ended? Its thread sees that only once it has the GVL.
      def gone?
        ["", nil].include?(@wire.socket.recv_nonblock(1, Socket::MSG_PEEK, exception: false))
      rescue SystemCallError, IOError
        true
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
        # Methods first seen since the last request for names.
        Agent.disarm(self) { Names.of(@named, Commands::MOST_NAMES) }
      end

      # @return [Integer, nil] where the text is that the peer has to read
      def begin_proof
        @proof = @server.proof_of(@peer_pid)
        @proof.address
      end

      # @return [String] the level
      def prove(answer)
        level = @proof.match?(answer, @peer_pid) ? Consent::ALL : @consent
        @proof = nil
        level or raise Broken.new("the client must be able to read this process's memory, or #{Consent::VARIABLE} must " \
                                  "admit it without that", "denied")
        @server.place { @placed = true }
        @level = level
      end

      def binding_kept
        @binding_kept ||= TOPLEVEL_BINDING.dup
      end

      private

      # Answer one request, if it stops the agent.
      def serve_stop(refusal)
        request, map = next_request(Agent.now + GREETING_SECONDS)
        return answer([request, map]) if map["command"] == "stop"

        refuse(request, refusal)
      end

      # Nothing else is answered before.
      def greet
        deadline = Agent.now + GREETING_SECONDS
        %w[hello prove].each do |command|
          frame = @wire.read(deadline)
          raise Broken, "#{command} comes first" unless frame.type == Wire::REQUEST && frame.flags.zero?

          map = Values.decode_map(frame.payload)
          raise Broken, "#{command} comes first" unless map["command"] == command

          answer([frame.request, map], Broken)
        end
      end

      def end_copy
        Process.kill(:KILL, @copy) if @copy
      rescue SystemCallError
        nil
      end

      # A request, with the DATA frames before it if it came in such.
      def next_request(deadline = nil)
        long = +""
        loop do
          await if Ractors::PERIOD
          frame = @wire.read(deadline)
          next if frame.type == Wire::CANCEL
          raise Broken, "0 is no request" if frame.request.zero?

          if frame.type == Wire::DATA
            raise Broken, "request too long" if (long << frame.payload).bytesize > Wire::MAX_REQUEST
          else
            return [frame.request, Values.decode_map(frame.flags == 1 ? long : frame.payload)]
          end
        end
      end

      # An armed hook is looked after meanwhile, however often there is a request.
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
      rescue Errno::EAGAIN => e # of fork
        refuse(request, Refusal.no_thread(e))
      rescue StandardError, NoMemoryError, ScriptError, SystemStackError => e
        refuse(request, Refusal.new("system", "#{e.class}: #{e.message}"))
      ensure
        @evaluation = nil
      end
    end
  end
end
