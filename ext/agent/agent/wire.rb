# frozen_string_literal: true

module Tracepoint
  module Agent
    # Frames on a socket, one connection's: docs/agent.md, "Frames".
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
      FRAME_SECONDS = 10
      Frame = Struct.new(:type, :flags, :request, :payload)

      attr_reader :socket

      def initialize(socket)
        @socket = socket
        @lock = Mutex.new
        # Of a frame that had begun when its time was over: it comes before any other.
        @rest = "".b
      end

      # The next frame; waits for its beginning until the deadline, if any.
      # @raise [Gone, Broken]
      def read(deadline = nil)
        first = read_some(HEAD, deadline)
        ends = now + FRAME_SECONDS
        first << read_exactly(HEAD - first.bytesize, ends)
        length, type, flags, zero, request = first.unpack("VCCvV")
        check(length, type, flags, zero)
        Frame.new(type, flags, request, read_exactly(length, ends))
      end

      def reply(request, map, type = REPLY)
        body = Values.encode(map)
        @lock.synchronize do
          if body.bytesize <= MAX_PAYLOAD
            write(type, 0, request, body)
          else
            write_chunks(0, request, body)
            write(type, 1, request, "")
          end
        end
      end

      # A reply that brings open files.
      def reply_with(request, map, files)
        frame = head(REPLY, 0, request, Values.encode(map))
        @lock.synchronize do
          send_whole("".b)
          sent = @socket.sendmsg(frame, 0, nil, Socket::AncillaryData.unix_rights(*files))
          @socket.write(frame.byteslice(sent..-1)) if sent < frame.bytesize
        end
      rescue SystemCallError, IOError
        raise Gone
      end

      # @return [Boolean] false: not all of it was written by the deadline
      def data(request, channel, bytes, deadline)
        @lock.synchronize { chunks(channel, request, bytes).all? { |frame| write_until(frame, deadline) } }
      rescue SystemCallError, IOError
        raise Gone
      end

      # An event, unless that would take longer than the deadline. The process
      # ends, and the thread that writes otherwise may be stuck: no frame is
      # begun that cannot be whole.
      def last_words(map, deadline)
        sleep 0.005 until (locked = @lock.try_lock) || now > deadline
        return unless locked

        body = Values.encode(map)
        frames = body.bytesize <= MAX_PAYLOAD ? [head(EVENT, 0, 0, body)] : chunks(0, 0, body) << head(EVENT, 1, 0, "")
        frames.each { |frame| return nil unless write_until(frame, deadline) }
      rescue SystemCallError, IOError
        nil
      end

      private

      def now
        Process.clock_gettime(Process::CLOCK_MONOTONIC)
      end

      def check(length, type, flags, zero)
        raise Broken, "no such frame" unless [REQUEST, DATA, CANCEL].include?(type) && zero.zero?
        raise Broken, "frame too long" if length > MAX_PAYLOAD
        raise Broken, "no such flags" if flags > (type == REQUEST ? 1 : 0)
        raise Broken, "a payload where none is" if length.positive? && (type == CANCEL || flags == 1)
      end

      def read_exactly(size, deadline)
        bytes = String.new(encoding: Encoding::BINARY)
        bytes << read_some(size - bytes.bytesize, deadline) while bytes.bytesize < size
        bytes
      end

      def read_some(size, deadline)
        loop do
          bytes = @socket.read_nonblock(size, exception: false)
          raise Gone if bytes.nil?
          return bytes unless bytes == :wait_readable

          left = deadline && (deadline - now)
          raise Broken, "too slow" if left && (left <= 0 || !IO.select([@socket], nil, nil, left))

          IO.select([@socket]) unless left
        end
      rescue SystemCallError, IOError
        raise Gone
      end

      def head(type, flags, request, payload)
        [payload.bytesize, type, flags, 0, request].pack("VCCvV") << payload
      end

      def chunks(channel, request, bytes)
        (0...bytes.bytesize).step(MAX_PAYLOAD).map { |at| head(DATA, channel, request, bytes.byteslice(at, MAX_PAYLOAD)) }
      end

      def write(type, flags, request, payload)
        send_whole(head(type, flags, request, payload))
      rescue SystemCallError, IOError
        raise Gone
      end

      def write_chunks(channel, request, bytes)
        (0...bytes.bytesize).step(MAX_PAYLOAD) { |at| write(DATA, channel, request, bytes.byteslice(at, MAX_PAYLOAD)) }
      end

      def send_whole(frame)
        rest = @rest
        @rest = "".b
        @socket.write(rest << frame)
      end

      # What is not written by then goes before the next frame.
      def write_until(frame, deadline)
        @rest << frame
        until @rest.empty?
          written = @socket.write_nonblock(@rest, exception: false)
          if written == :wait_writable
            left = deadline - now
            return false if left <= 0 || !IO.select(nil, [@socket], nil, left)
          else
            @rest = @rest.byteslice(written..-1)
          end
        end
        true
      end
    end
  end
end
