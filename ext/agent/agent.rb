# frozen_string_literal: true

require "rbconfig"

module Tracepoint
  # Serves tracers from inside the process: the socket, and the commands of
  # docs/agent/protocol.md. The method hook is written in C: agent.c and hook/.
  #
  # rbtrace-py also loads the agent into processes without it. There all parts are
  # concatenated into one file, where they are required below. The parts therefore
  # do not use their own paths, and begin with the same magic comment. The agent loads only
  # "socket" of Ruby's standard libraries, because it is not a gem: a gem could have the
  # wrong version for the program's Bundler.
  module Agent
    PROTOCOL = 1
    MAGIC = "rbtrace-agent"
    FOLDER = __dir__
    # Folders created by `attach` have this prefix; they are removed with the tracer.
    PUT_THERE = File.basename(FOLDER).start_with?(".rbtrace-")
  end
end

require_relative "agent/refusal"
require_relative "agent/values"
require_relative "agent/early"
require_relative "agent/wire"
require_relative "agent/place"
require_relative "agent/proof"
require_relative "agent/consent"
require_relative "agent/names"
require_relative "agent/slices"
require_relative "agent/search"
require_relative "agent/watcher"
require_relative "agent/targets"
require_relative "agent/arming"
require_relative "agent/facts"
require_relative "agent/ractors"
require_relative "agent/native"
# The rest of "socket" (its Ruby file, and the gem io-wait) releases the GVL up to five
# times. In an injected agent, load.rb loads it once the agent can answer. Another thread
# may be loading this part at the same time (loading.py): wait for it.
Thread.current.thread_variable_get(:rbtrace_library)&.join
require Tracepoint::Agent::PUT_THERE ? "socket.so" : "socket"
require_relative "agent/expressions"
require_relative "agent/clock"
require_relative "agent/redirect"
require_relative "agent/pump"
require_relative "agent/evaluation"
require_relative "agent/copy"
require_relative "agent/dump"
require_relative "agent/commands"
require_relative "agent/connection"
require_relative "agent/server"
require_relative "agent/forks"
require_relative "agent/hold"

module Tracepoint
  module Agent
    EXIT_SECONDS = 1
    LOCK = Mutex.new
    @server = @armed_by = @pid = nil
    @undos = {}.compare_by_identity

    class << self
      # @return [Float] seconds on the monotonic clock, as used by deadlines
      def now
        Process.clock_gettime(Process::CLOCK_MONOTONIC)
      end

      # @return [Connection, nil]
      attr_reader :armed_by

      # @return [String, nil] the socket's path; nil without a socket
      def path
        @server&.path
      end

      def start
        return if @server

        @pid = Process.pid
        @server = Server.new
        warn "tracepoint/agent: #{@server.reason}" unless path
      end

      # Stop the agent: remove its socket, and disarm.
      def stop
        # Closing releases the GVL. In a child that Ruby does not know about, the GVL may
        # then go to a thread that does not exist here, and the child would hang.
        return leave_parent(closes: false) if child?

        @server&.shut
        close
      end

      # @return [Integer, nil] the address of the text that this process has to read
      def expect(pid)
        @server&.expect(pid)
      end

      def welcome
        @server&.welcome
      end

      def own?(thread)
        @server ? @server.own?(thread) : false
      end

      def arm(connection)
        disarm(armed_by) if armed_by&.gone?
        LOCK.synchronize do
          raise Refusal.new("state", "already armed") if armed_by.equal?(connection)
          raise Refusal.new("busy", "armed by process #{armed_by.peer_pid}", pid: armed_by.peer_pid) if armed_by

          arm_whole(connection) { yield }
        end
      end

      # @return [Hash, nil] the final status; nil if the connection had armed nothing
      def disarm(connection)
        LOCK.synchronize do
          return nil unless connection && armed_by.equal?(connection)

          Ractors.renew if Ractors::PERIOD && own?(Thread.current)
          Native.stop
          Targets.stop
          status = Arming.status
          status = status.merge(names: yield) if block_given?
          Native.release
          Ractors.unwatch
          @armed_by = nil
          status
        end
      rescue ThreadError # a signal handler cannot lock a Mutex
        # The same error ends the connection in its thread, which calls this, too.
        nil
      end

      # Fork a child that runs the block without an agent, and exits.
      def fork_apart
        Thread.current[:rbtrace_apart] = true
        pid = Process.fork do
          yield
          exit!(true)
        rescue Exception # rubocop:disable Lint/RescueException -- no code of the program may run here
          exit!(false)
        end
        pid
      ensure
        Thread.current[:rbtrace_apart] = nil
      end

      # Run the block, and then call `undo`. This also happens if its thread is killed, and
      # in a child that is forked meanwhile, where the thread does not exist.
      def undoing(undo)
        @undos[undo] = true
        yield
      ensure
        undo.call
        @undos.delete(undo)
      end

      # Detect a fork, and restart the agent in the child. The program's fork must not
      # raise because the agent cannot start a thread or $stderr is closed.
      def check_fork
        return if @pid == Process.pid || @pid.nil?

        had = @server
        leave_parent
        start if had && !Thread.current[:rbtrace_apart]
      rescue StandardError
        nil
      end

      # Clean up when the program exits, before its threads are killed.
      def finish
        return if @server.nil? || child?

        deadline = now + EXIT_SECONDS
        say_last_words(deadline) if armed_by
        @server.end_evaluations(deadline)
        Targets.leave
        close
      end

      private

      # Return whether this is a child, even of a fork that Ruby does not know about. Since
      # 3.3, Process.pid is the parent's pid there.
      def child?
        @pid != Process.pid || !(Native.reason || !Native.forked)
      end

      def close
        server = @server
        @server = nil
        server&.close
        disarm(armed_by) if armed_by
      end

      # In a child: discard what the parent's agent had set up.
      def leave_parent(closes: true)
        server = @server
        undos = [*@undos.keys, -> { Redirect.forget }]
        forget
        undos << -> { Ractors.unwatch }
        undos << -> { Targets.stop }
        undos << -> { Native.forget } unless Native.reason
        undos << -> { server.abandon } if server && closes
        undos.each do |undo|
          undo.call
        rescue StandardError
          next
        end
      end

      def forget
        @server = nil
        @armed_by = nil
        @undos = {}.compare_by_identity
        @pid = Process.pid
        # A thread that does not exist here may have held it.
        remove_const(:LOCK)
        const_set(:LOCK, Mutex.new)
      end

      # The connection's thread may be killed while it arms.
      def arm_whole(connection)
        answer = yield
        @armed_by = connection
        answer
      ensure
        give_up_arming unless @armed_by
      end

      def give_up_arming
        Native.release
        Targets.stop
        Ractors.unwatch
      end

      # A request that its tracer disarms in the meantime gets no answer.
      def say_last_words(deadline)
        words = LOCK.synchronize { last_words if armed_by }
        @server.last_words(words, deadline) if words
      end

      def last_words
        Native.stop
        status = Arming.status
        { event: "exit", status: status, methods: Names.of(0, status[:methods]) }
      end
    end

    Forks.install
    at_exit { Agent.finish }
    start
    Hold.wait if path
  end
end
