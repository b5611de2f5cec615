# frozen_string_literal: true

module Tracepoint
  module Agent
    # The socket, and its connections.
    class Server
      MAX_CONNECTIONS = 8 # with a proof
      MAX_GREETING = 8
      FULL = "#{MAX_CONNECTIONS} connections are open".freeze
      STOP_SECONDS = 1
      WELCOME_SECONDS = 0.02
      # The socket's path, or the reason for its absence.
      attr_reader :path, :reason

      def initialize
        @pid = Process.pid
        @thread = nil
        @connections = []
        @is_shut = false
        @expected = nil
        @lock = Mutex.new
        @group = ThreadGroup.new
        @consent = Consent.level
        @listener, @path = Place.bind
        # A thread inherits deferred interrupts from the thread that starts it.
        @thread = Thread.handle_interrupt(Object => :never) { start { accept } } if @listener
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

      # Let code that runs until its client disconnects write its remaining output.
      def end_evaluations(deadline)
        told = @connections.select { |connection| connection.evaluation&.tell_end }
        sleep 0.005 until told.none?(&:evaluation) || Agent.now > deadline
      end

      # Run the block, which takes a place, if one is free. A connection without a place can
      # only stop the agent. A client that has ended keeps its place until its thread notices.
      def place
        @lock.synchronize { yield if @connections.count(&:placed) < MAX_CONNECTIONS }
      end

      # Expect a proof from the process with this pid, which gets the text's address
      # beforehand.
      # @return [Integer, nil] the text's address
      def expect(pid)
        proof = Proof.new
        @expected = [pid, proof, Agent.now + Connection::GREETING_SECONDS]
        proof.address
      end

      def proof_of(pid)
        expected, proof, deadline = @expected
        return Proof.new unless expected == pid && Agent.now < deadline

        @expected = nil
        proof
      end

      # Serve clients that are already connecting, in the calling thread. Poll instead of
      # waiting: waiting would release the GVL, which costs 0.1 s per busy thread.
      def welcome
        @group.add(Thread.current)
        as_own do
          Thread.handle_interrupt(Object => :never) do
            connection = look_out(Agent.now + WELCOME_SECONDS)
            serve(connection) if connection
          end
        end
      rescue SystemCallError, IOError, ThreadError # raised if its group is enclosed
        nil
      end

      # Admit no more clients.
      def shut
        @is_shut = true
        @thread.kill.join(STOP_SECONDS) unless [nil, Thread.current].include?(@thread)
      end

      # Close the server when the process or the agent ends.
      def close
        return unless @pid == Process.pid

        @is_shut = true
        File.unlink(@path) if @path && File.socket?(@path)
        @thread.kill unless [nil, Thread.current].include?(@thread)
        @listener&.close
        (@group.list - [Thread.current]).each(&:kill)
      rescue SystemCallError, IOError
        nil
      end

      # Close the copies of the sockets in a child.
      def abandon
        [@listener, *@connections.map { |connection| connection.wire.socket }].compact.each do |socket|
          socket.close
        rescue SystemCallError, IOError
          next
        end
      end

      private

      # A thread inherits the group of the thread that starts it.
      def start
        thread = Thread.new do
          # Comes first: calls of methods before or after it would be traced.
          Native.own(true) unless Native.reason
          mark
          yield
        ensure
          Native.own(false) unless Native.reason
        end
        thread.name = "rbtrace agent"
        thread.report_on_exception = false
        @group.add(thread)
        thread
      end

      # The thread that loads the agent acts as a server thread for a moment.
      def as_own
        Native.own(true) unless Native.reason
        mark
        yield
      ensure
        Native.own(false) unless Native.reason
      end

      def mark
        # Not the priority of the thread that loaded the agent.
        Thread.current.priority = 0
        # A thread that is just ending no longer has a group, so mark it as well.
        Thread.current.thread_variable_set(:rbtrace_agent, true)
      end

      # @return [Connection, nil] a connection that has sent something
      def look_out(deadline)
        socket = connection = nil
        until @is_shut || Agent.now > deadline
          socket = Early.accept(@listener) if socket.nil? || socket == :wait_readable
          next if socket == :wait_readable

          connection ||= admit(socket) or return
          return connection if Early.ready?(socket)
        end
        connection
      end

      # The thread that accepted a connection serves it, and a new thread accepts the next: a
      # new thread waits for the GVL, 0.1 s per busy thread.
      #
      # Interrupts are deferred, so that every admitted client has a thread that closes it.
      def accept
        connection = await_connection
        serve(connection) if connection
      end

      # @return [Connection, nil] nil: no more clients are admitted
      def await_connection
        interruptibly { end_oldest_greetings }
        until @is_shut
          begin
            # Waiting releases the GVL even if a client is already there.
            socket = Early.accept(@listener)
            next interruptibly { IO.select([@listener]) } if socket == :wait_readable

            connection = admit(socket)
            return hand_over(connection) if connection
          rescue SystemCallError, ThreadError # out of descriptors or threads
            interruptibly { sleep 0.1 }
          end
        end
      rescue IOError # closed
        nil
      end

      def interruptibly(&block)
        Thread.handle_interrupt(Object => :immediate, &block)
      end

      # @return [Connection, nil] nil: the client was rejected
      def admit(socket)
        pid, uid, = socket.getsockopt(:SOCKET, :PEERCRED).unpack("iii")
        # Our user namespace may be unable to represent root of another one.
        return socket.close unless uid.zero? || uid == Process.euid || Consent.unknown?(uid)

        connection = Connection.new(socket, pid, self, consent_to(pid, uid))
        @connections << connection
        connection
      end

      # End the oldest greetings to make room. Wait for their threads to end.
      def end_oldest_greetings
        while (greeting = @connections.reject(&:placed)).size > MAX_GREETING
          greeting[0...-MAX_GREETING].each(&:hang_up)
          sleep 0.005
        end
      end

      def hand_over(connection)
        @thread = start { accept }
        connection
      rescue ThreadError => e
        serve(connection, Refusal.no_thread(e))
        raise
      end

      def consent_to(pid, uid)
        @consent if @consent && Consent.same_user?(uid) && Consent.same_pid_namespace?(pid)
      end

      def serve(connection, refusal = nil)
        interruptibly { connection.serve(refusal) }
      ensure
        connection.close
        @connections.delete(connection)
      end
    end
  end
end
