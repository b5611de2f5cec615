# frozen_string_literal: true

module Tracepoint
  module Agent
    # Frames on the socket of one connection: docs/agent/protocol.md, "Frames".
    class Wire
      REQUEST = 1
      DATA = 2
      REPLY = 3
      ERROR = 4
      EVENT = 5
      CANCEL = 6
      HEAD = 12
      MAX_PAYLOAD = 65_536
      MAX_REQUEST = 16 << 20
      MAX_REPLY = 8 << 20
      FRAME_SECONDS = 10
      Frame = Struct.new(:type, :flags, :request, :payload)

      attr_reader :socket

      def initialize(socket)
        @socket = socket
        @lock = Mutex.new
        # The rest of a frame whose time limit passed while writing: it precedes any other.
        @rest = "".b
      end

      # Return the next frame, which must be complete by the deadline. Without a deadline,
      # its beginning may take any time.
      # @raise [Gone, Broken]
      def read(deadline = nil)
        first = read_some(HEAD, deadline)
        ends = deadline || (Agent.now + FRAME_SECONDS)
        first << read_exactly(HEAD - first.bytesize, ends)
        length, type, flags, zero, request = first.unpack("VCCvV")
        check(length, type, flags, zero)
        Frame.new(type, flags, request, read_exactly(length, ends))
      end

      def reply(request, map, type = REPLY)
        body = Values.encode(map)
        raise Refusal.new("system", "the answer has #{body.bytesize} bytes, more than #{MAX_REPLY}") if body.bytesize > MAX_REPLY

        @lock.synchronize { frames(type, request, body).each { |frame| write(frame) } }
      end

      # Send a reply with open files.
      def reply_with(request, map, files)
        frame = head(REPLY, 0, request, Values.encode(map))
        Early.complete
        @lock.synchronize do
          send_whole("".b)
          sent = @socket.sendmsg(frame, 0, nil, Socket::AncillaryData.unix_rights(*files))
          @socket.write(frame.byteslice(sent..-1)) if sent < frame.bytesize
        end
      rescue SystemCallError, IOError
        raise Gone
      end

      # @return [Boolean] false if the deadline passed before everything was written
      def data(request, channel, bytes, deadline)
        @lock.synchronize { chunks(channel, request, bytes).all? { |frame| write_until(frame, deadline) } }
      rescue SystemCallError, IOError
        raise Gone
      end

      # Send an event, unless that would take longer than the deadline. The process is
      # ending, and the thread that usually writes may be stuck, so this starts no frame
      # that it cannot complete.
      def last_words(map, deadline)
        sleep 0.005 until (locked = @lock.try_lock) || Agent.now > deadline
        return unless locked

        frames(EVENT, 0, Values.encode(map)).all? { |frame| write_until(frame, deadline) }
      rescue SystemCallError, IOError
        nil
      end

      private

      def check(length, type, flags, zero)
        raise Broken, "unknown frame type" unless [REQUEST, DATA, CANCEL].include?(type) && zero.zero?
        raise Broken, "frame too long" if length > MAX_PAYLOAD
        raise Broken, "invalid flags" if flags > (type == REQUEST ? 1 : 0)
        raise Broken, "unexpected payload" if length.positive? && (type == CANCEL || flags == 1)
      end

      # Return the sockets that are ready before the deadline, if any.
      def await(read, write, deadline)
        left = deadline && (deadline - Agent.now)
        IO.select(read, write, nil, left) unless left&.negative?
      end

      def read_exactly(size, deadline)
        bytes = String.new(encoding: Encoding::BINARY)
        bytes << read_some(size - bytes.bytesize, deadline) while bytes.bytesize < size
        bytes
      end

      def read_some(size, deadline)
        loop do
          bytes = Early.read(@socket, size)
          raise Gone if bytes.nil?
          return bytes unless bytes == :wait_readable

          raise Broken, "frame not complete in time" unless await([@socket], [], deadline)
        end
      rescue SystemCallError, IOError
        raise Gone
      end

      def head(type, flags, request, payload)
        [payload.bytesize, type, flags, 0, request].pack("VCCvV") << payload
      end

      # Return one frame; or, if the body is too long, pieces of it and a final frame.
      def frames(type, request, body)
        return [head(type, 0, request, body)] if body.bytesize <= MAX_PAYLOAD

        chunks(0, request, body) + [head(type, 1, request, "")]
      end

      # Create each piece when it is needed.
      def chunks(channel, request, bytes)
        return [head(DATA, channel, request, bytes)].lazy if bytes.bytesize.between?(1, MAX_PAYLOAD)

        (0...bytes.bytesize).step(MAX_PAYLOAD).lazy.map { |at| head(DATA, channel, request, bytes.byteslice(at, MAX_PAYLOAD)) }
      end

      def write(frame)
        send_whole(frame)
      rescue SystemCallError, IOError
        raise Gone
      end

      def send_whole(frame)
        bytes = @rest << frame
        @rest = "".b
        # A write that could block waits for the GVL afterwards, 0.1 s per busy thread.
        written = @socket.write_nonblock(bytes, exception: false)
        written = 0 if written == :wait_writable
        @socket.write(bytes.byteslice(written..-1)) if written < bytes.bytesize
      end

      # Data that are not written by the deadline precede the next frame. Strings are cleared:
      # those of a dump would otherwise leave tens of megabytes of garbage in the program.
      def write_until(frame, deadline)
        @rest << frame
        frame.clear
        until @rest.empty?
          written = @socket.write_nonblock(@rest, exception: false)
          if written == :wait_writable
            return false unless await([], [@socket], deadline)
          elsif written == @rest.bytesize
            @rest.clear
          else
            @rest = @rest.byteslice(written..-1)
          end
        end
        true
      end
    end
  end
end
