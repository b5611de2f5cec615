# frozen_string_literal: true

module Tracepoint
  module Agent
    # The connection of one tracer.
    class Connection
      GREETING_SECONDS = 5

      attr_reader :wire, :peer_pid

      # The connection's level; nil before a proof or the owner's consent.
      attr_reader :level

      # True if the connection occupies one of the server's places.
      attr_reader :placed

      # The evaluation that is running for the client, if any.
      attr_accessor :evaluation

      # The pid of a stopped copy that the client does not know yet.
      attr_writer :copy

      # The first method number whose name has not been sent yet.
      attr_writer :named

      # consent: the level without a proof
      # server: limits the number of connections with a proof
      def initialize(socket, peer_pid, server, consent = nil)
        @server = server
        @wire = Wire.new(socket)
        @peer_pid = peer_pid
        @consent = consent
        @commands = Commands.new(self)
        @due = 0.0
        @named = 0
        # Ruby 2.7 warns about unset instance variables.
        @level = @placed = @proof = @copy = nil
      end

      # refusal: the answer to every command except `stop`
      def serve(refusal = nil)
        greet
        refusal ||= Refusal.new("busy", Server::FULL) unless @placed
        refusal ? serve_stop(refusal) : loop { answer(next_request) }
      rescue Broken => e
        refuse(0, e)
      rescue Gone => e
        # Unlike at the end of the stream, the client did not read everything.
        end_copy if e.cause.is_a?(SystemCallError)
      end

      # The connection's thread sees the end of the stream and closes the socket.
      def hang_up
        @wire.socket.shutdown
      rescue SystemCallError, IOError
        nil
      end

      def close
        Agent.disarm(self) if armed? # waits for another connection's arming
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

      # Return whether the client has disconnected. Its thread notices only with the GVL.
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
        # Names of methods first seen since the last request for names.
        Agent.disarm(self) { Names.of(@named, Commands::MOST_NAMES) }
      end

      # @return [Integer, nil] the address of the text that the peer has to read
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

      # Answer one request, which may stop the agent.
      def serve_stop(refusal)
        request, map = next_request(Agent.now + GREETING_SECONDS)
        return answer([request, map]) if map["command"] == "stop"

        refuse(request, refusal)
      end

      # No other command is answered before these.
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

      # Return a request. A long one is assembled from its DATA frames.
      def next_request(deadline = nil)
        long = +""
        loop do
          await if Ractors::PERIOD
          frame = @wire.read(deadline)
          next if frame.type == Wire::CANCEL
          raise Broken, "invalid request number: 0" if frame.request.zero?

          if frame.type == Wire::DATA
            raise Broken, "request too long" if (long << frame.payload).bytesize > Wire::MAX_REQUEST
          else
            return [frame.request, Values.decode_map(frame.flags == 1 ? long : frame.payload)]
          end
        end
      end

      # Wait for a request. While armed, renew the hook at regular intervals.
      def await
        while armed?
          left = @due - Agent.now
          return if left.positive? && IO.select([@wire.socket], nil, nil, left)

          Ractors.renew
          @due = Agent.now + Ractors::PERIOD
        end
      end

      def answer((request, map), fatal = nil)
        raise Broken, "invalid request number: 0" if request.zero?

        @request = request
        @copy = nil
        reply = @commands.call(request, map)
        @wire.reply(request, reply) if reply
      rescue Gone, Broken
        raise
      rescue Refusal => e
        refuse(request, e)
        raise Gone if fatal
      rescue Errno::EAGAIN => e # raised by fork
        refuse(request, Refusal.no_thread(e))
      rescue StandardError, NoMemoryError, ScriptError, SystemStackError => e
        refuse(request, Refusal.new("system", "#{e.class}: #{e.message}"))
      ensure
        @evaluation = nil
      end
    end
  end
end
