# frozen_string_literal: true

module Tracepoint
  module Agent
    # The socket, and who is connected.
    class Server
      MAX_CONNECTIONS = 8
      NOBODY = 65_534
      ALL_USERS = (1 << 32) - 1
      STOP_SECONDS = 1
      # Of the socket; or why there is none.
      attr_reader :path, :reason

      def initialize
        @pid = Process.pid
        @thread = nil
        @connections = []
        @group = ThreadGroup.new
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
          IO.select([@listener])
          # Who is let in has a thread that closes it, whenever all this ends.
          Thread.handle_interrupt(Object => :never) { admit(@listener.accept_nonblock(exception: false)) }
        rescue SystemCallError, ThreadError # no more descriptors, or threads
          sleep 0.1
        end
      rescue IOError # closed
        nil
      end

      def admit(socket)
        return if socket == :wait_readable # gone before it was there

        pid, uid, = socket.getsockopt(:SOCKET, :PEERCRED).unpack("iii")
        return socket.close unless uid.zero? || (uid == Process.euid && !(uid == NOBODY && strangers?))

        connection = Connection.new(socket, pid)
        if @connections.size >= MAX_CONNECTIONS
          connection.refuse(0, Refusal.new("busy", "#{MAX_CONNECTIONS} connections are open"))
          return socket.close
        end
        begin_serving(connection)
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

      # Are there users whom our user namespace has no number for? It shows each as nobody.
      def strangers?
        File.readlines("/proc/self/uid_map").sum { |line| line.split.last.to_i } < ALL_USERS
      rescue SystemCallError
        true
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
