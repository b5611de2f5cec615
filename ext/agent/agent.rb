# frozen_string_literal: true

require "rbconfig"

module Tracepoint
  # Answers a tracer from inside the process: a socket, and behind it the
  # commands of docs/agent/protocol.md. The method hook is in C: agent.c and hook/.
  #
  # It is also put into processes that never asked for it: there its parts are one
  # file, joined where they are required below. So they say nothing of where they
  # are themselves, and begin with the same comment. Of Ruby's own libraries only
  # "socket" is loaded, which is no gem (a gem that is loaded here could be the
  # wrong one for the program's Bundler).
  module Agent
    PROTOCOL = 1
    MAGIC = "rbtrace-agent"
    FOLDER = __dir__
    # The prefix of attach's folders; they go when the tracer does.
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
# The rest of "socket" gives up the GVL up to five times (its file, and the gem
# io-wait): where the agent is put, load.rb sees to it when the agent can answer. Another
# thread may load this part meanwhile (loading.py): wait for it.
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
      # In seconds: what deadlines are of.
      def now
        Process.clock_gettime(Process::CLOCK_MONOTONIC)
      end

      # @return [Connection, nil]
      attr_reader :armed_by

      # @return [String, nil] of the socket, nil where there is none
      def path
        @server&.path
      end

      def start
        return if @server

        @pid = Process.pid
        @server = Server.new
        warn "tracepoint/agent: #{@server.reason}" unless path
      end

      # Take the agent out of service: its socket goes, what is armed is disarmed.
      def stop
        # A close lets go of the GVL. Behind Ruby's back a thread that is not here may
        # be the next to have it, so that the child would wait for ever.
        return leave_parent(closes: false) if child?

        @server&.shut
        close
      end

      # @return [Integer, nil] where the text is that this process will have to read
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
          raise Refusal.new("state", "armed already") if armed_by.equal?(connection)
          raise Refusal.new("busy", "armed by process #{armed_by.peer_pid}", pid: armed_by.peer_pid) if armed_by

          arm_whole(connection) { yield }
        end
      end

      # @return [Hash, nil] the status at the end; nil if it had armed nothing
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
      rescue ThreadError # in a signal's handler, where no Mutex can be had
        # The error that ends the connection comes here too, in the connection's thread.
        nil
      end

      # A child that runs the block and ends, and has no agent.
      def fork_apart
        Thread.current[:rbtrace_apart] = true
        pid = Process.fork do
          yield
          exit!(true)
        rescue Exception # rubocop:disable Lint/RescueException -- nothing of the program's may run
          exit!(false)
        end
        pid
      ensure
        Thread.current[:rbtrace_apart] = nil
      end

      # The block, and then what undoes what it did: also if its thread is killed, and
      # in a child that is forked meanwhile, which has not that thread.
      def undoing(undo)
        @undos[undo] = true
        yield
      ensure
        undo.call
        @undos.delete(undo)
      end

      # Is this a child of the process whose agent it has? That there are no more
      # threads, or that $stderr is closed, must not come out of the program's fork.
      def check_fork
        return if @pid == Process.pid || @pid.nil?

        had = @server
        leave_parent
        start if had && !Thread.current[:rbtrace_apart]
      rescue StandardError
        nil
      end

      # Cleans up at the program's end, before its threads are killed.
      def finish
        return if @server.nil? || child?

        deadline = now + EXIT_SECONDS
        say_last_words(deadline) if armed_by
        @server.end_evaluations(deadline)
        Targets.leave
        close
      end

      private

      # Is this a child, of a fork too that Ruby was not told of? From 3.3 on Process.pid
      # is the parent's then.
      def child?
        @pid != Process.pid || !(Native.reason || !Native.forked)
      end

      def close
        server = @server
        @server = nil
        server&.close
        disarm(armed_by) if armed_by
      end

      # In a child: what its parent's agent did is not done here.
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
        # A thread that is not here may have held it.
        remove_const(:LOCK)
        const_set(:LOCK, Mutex.new)
      end

      # The connection's thread may be killed in the middle of it.
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

      # A request that is disarmed by its tracer meanwhile gets no answer.
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
