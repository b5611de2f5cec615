# frozen_string_literal: true

module Tracepoint
  module Agent
    # The socket, and who is connected.
    class Server
      MAX_CONNECTIONS = 8 # that have proved
      MAX_GREETING = 8
      FULL = "#{MAX_CONNECTIONS} connections are open".freeze
      STOP_SECONDS = 1
      # Of the socket; or why there is none.
      attr_reader :path, :reason

      def initialize
        @pid = Process.pid
        @thread = nil
        @connections = []
        @lock = Mutex.new
        @group = ThreadGroup.new
        @consent = Consent.level
        @listener, @path = Place.bind
        @thread = start { accept } if @listener
        @reason = "no socket could be made in #{Place.directories.join(" or ")}" unless @listener
      rescue ThreadError => e
        close
        @listener = @path = nil
        @reason = e.message
      end

      def own?(thread)
        @group.list.include?(thread) || thread.thread_variable_get(:rbtrace_agent) == true
      end

      def last_words(map, deadline)
        @connections.each { |connection| connection.wire.last_words(map, deadline) if connection.armed? }
      end

      # Code that runs for as long as somebody listens may say what it has left.
      def end_evaluations(deadline)
        told = @connections.select { |connection| connection.evaluation&.tell_end }
        sleep 0.005 until told.none?(&:evaluation) || Agent.now > deadline
      end

      # The block says that one more has proved.
      def let_in
        @lock.synchronize do
          raise Broken.new(FULL, "busy") if full?

          yield
        end
      end

      # Nobody is let in from here on.
      def shut
        @thread&.kill&.join(STOP_SECONDS)
      end

      # As the process ends, or the agent does.
      def close
        return unless @pid == Process.pid

        File.unlink(@path) if @path && File.socket?(@path)
        @thread&.kill
        @listener&.close
        (@group.list - [Thread.current]).each(&:kill)
      rescue SystemCallError, IOError
        nil
      end

      # In a child, which has copies of it all.
      def abandon
        [@listener, *@connections.map { |connection| connection.wire.socket }].compact.each do |socket|
          socket.close
        rescue SystemCallError, IOError
          next
        end
      end

      private

      # Threads that begin in one of the group are of it too.
      def start
        thread = Thread.new do
          # One that ends just now is of no group any more.
          Thread.current.thread_variable_set(:rbtrace_agent, true)
          Native.own(true) unless Native.reason
          yield
        ensure
          Native.own(false) unless Native.reason
        end
        thread.name = "rbtrace agent"
        thread.report_on_exception = false
        @group.add(thread)
        thread
      end

      def accept
        loop do
          # Who is let in has a thread that closes it, whenever all this ends.
          socket = Thread.handle_interrupt(Object => :never) { admit(@listener.accept_nonblock(exception: false)) }
          end_oldest_greetings
          # To wait gives up Ruby's lock, also where somebody is there.
          IO.select([@listener]) if socket == :wait_readable
        rescue SystemCallError, ThreadError # no more descriptors, or threads
          sleep 0.1
        end
      rescue IOError # closed
        nil
      end

      def admit(socket)
        return socket if socket == :wait_readable

        pid, uid, = socket.getsockopt(:SOCKET, :PEERCRED).unpack("iii")
        # Root of another user namespace has no number in ours.
        return socket.close unless uid.zero? || uid == Process.euid || Consent.unknown?(uid)

        connection = Connection.new(socket, pid, self, consent_to(pid, uid))
        if full?
          connection.refuse(0, Refusal.new("busy", FULL))
          return socket.close
        end
        begin_serving(connection)
      end

      def full?
        @connections.count(&:level) >= MAX_CONNECTIONS
      end

      # The oldest make room. Nobody else is let in before their threads have ended.
      def end_oldest_greetings
        while (greeting = @connections.reject(&:level)).size > MAX_GREETING
          greeting[0...-MAX_GREETING].each(&:hang_up)
          sleep 0.005
        end
      end

      def begin_serving(connection)
        @connections << connection
        start { serve(connection) }
      rescue ThreadError => e
        @connections.delete(connection)
        connection.refuse(0, Refusal.new("system", e.message))
        connection.close
        raise
      end

      def consent_to(pid, uid)
        @consent if @consent && Consent.same_user?(uid) && Consent.same_pid_namespace?(pid)
      end

      # Begins with interrupts put off, as who lets in does.
      def serve(connection)
        Thread.handle_interrupt(Object => :immediate) { connection.serve }
      ensure
        connection.close
        @connections.delete(connection)
      end
    end
  end
end
