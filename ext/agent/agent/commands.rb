# frozen_string_literal: true

module Tracepoint
  module Agent
    # Handles the commands: each has a method that returns the reply.
    class Commands
      ARGUMENTS = {
        "hello" => %w[magic versions], "prove" => %w[answer], "arm" => Arming::ARGUMENTS, "disarm" => [], "status" => [], "clock" => [],
        "names" => %w[from count], "threads" => [], "eval" => %w[code limit_ms file line keep redirect], "backtraces" => [],
        "memory" => [], "heapdump" => %w[gc limit_ms], "shapesdump" => %w[gc limit_ms], "fork" => [], "stop" => []
      }.freeze
      # The level that a command needs; the default is eval.
      NEEDS = { "arm" => "observe", "disarm" => "observe", "status" => "observe", "clock" => "observe",
                "names" => "observe", "threads" => "observe", "backtraces" => "observe", "memory" => "trace" }.freeze
      GREETING = %w[hello prove].freeze
      DUMP_MS = 600_000
      EVAL_MS = 5_000
      MOST_MS = 3_600_000
      MOST_NAMES = 4096

      def initialize(connection)
        @connection = connection
        @wire = connection.wire
      end

      def call(request, map)
        command = map.delete("command")
        known = ARGUMENTS[command] or raise Refusal.new("command", "unknown command")
        unknown = map.keys - known
        raise Refusal.new("argument", "unknown arguments: #{unknown.first(3).join(", ")}") unless unknown.empty?

        check_level(command, map)
        @request = request
        @map = map
        __send__(:"command_#{command}")
      end

      private

      def check_level(command, map)
        if GREETING.include?(command)
          raise Refusal.new("state", "#{command} was already sent") if @connection.level
        else
          needs!(NEEDS.fetch(command, Consent::ALL), command)
          needs!(Arming.needs(map), "this arming") if command == "arm"
        end
      end

      def needs!(level, what)
        return if Consent.enough?(@connection.level, level)

        raise Refusal.new("denied", "#{what} needs the level #{level}, and this connection has #{@connection.level}")
      end

      def argument(name, type, default)
        value = @map.fetch(name, default)
        raise Refusal.new("argument", "#{name} is missing or not #{type}") unless type === value

        value
      end

      def flag(name, default = false)
        argument(name, ->(value) { [true, false].include?(value) }, default)
      end

      def seconds(default)
        argument("limit_ms", 1..MOST_MS, default) / 1000.0
      end

      def native!
        raise Refusal.new("unsupported", Native.reason) if Native.reason
      end

      def armed!
        raise Refusal.new("state", "nothing is armed") unless @connection.armed?
      end

      def command_hello
        raise Broken, "wrong magic" unless @map["magic"] == MAGIC
        raise Broken.new("versions: #{PROTOCOL}", "version") unless @map["versions"].is_a?(Array) && @map["versions"].include?(PROTOCOL)

        { version: PROTOCOL, address: @connection.begin_proof }
      end

      def command_prove
        { level: @connection.prove(@map["answer"]), pid: Process.pid, uid: Process.euid, ruby: RUBY_VERSION, description: RUBY_DESCRIPTION,
          program: $PROGRAM_NAME, gem: Facts.version, arch: Facts.arch, commands: ARGUMENTS.keys,
          native: Native.reason.nil?, native_reason: Native.reason, targets: Native.reason.nil?,
          clock: Clock::NAMES[Clock::KIND], jit: Facts.jit, ractors: Facts.ractors, armed_by: Agent.armed_by&.peer_pid }
      end

      def command_arm
        native!
        arming = Arming.new(@map)
        @connection.arm { arming.call }
      end

      def command_disarm
        armed!
        @connection.disarm
      end

      def command_status
        armed!
        Arming.status
      end

      def command_clock
        native!
        Clock.pair
      end

      def command_names
        armed!
        from = argument("from", 0..(1 << 20), 0)
        found = Names.of(from, argument("count", 0..MOST_NAMES, MOST_NAMES))
        @connection.named = from + found.size
        { methods: found }
      end

      def command_threads
        { threads: Thread.list.map { |thread| describe(thread) } }
      end

      def describe(thread)
        { native_id: native_id(thread), name: thread.name,
          status: thread.status || nil, main: thread == Thread.main, agent: Agent.own?(thread) }
      end

      # Under Ruby 3.1, the child's main thread, which called fork, keeps the parent's
      # native ID. The kernel's ID of that thread is the process's pid.
      def native_id(thread)
        return unless thread.respond_to?(:native_thread_id)

        id = thread.native_thread_id
        is_stale = thread == Thread.main && !File.exist?("/proc/self/task/#{id}")
        is_stale ? Process.pid : id
      end

      def command_eval
        file = argument("file", String, Evaluation::FILE)
        line = argument("line", 0..(1 << 30), 1)
        binding = flag("keep") ? @connection.binding_kept : TOPLEVEL_BINDING.dup
        evaluation = Evaluation.new(argument("code", String, nil), file, line, binding, flag("redirect", true))
        @connection.evaluation = evaluation
        found = evaluation.run(@wire, @request, seconds(EVAL_MS))
        raise found if found.is_a?(Refusal)

        found || raise(Refusal.new("raised", "the thread was killed", class: nil, backtrace: []))
      end

      def command_backtraces
        { threads: Thread.list.map { |thread| describe(thread).merge(backtrace: thread.backtrace || []) } }
      end

      def command_memory
        { gc: GC.stat, objects: ObjectSpace.count_objects }.merge(resident)
      end

      def resident
        rollup = File.read("/proc/self/smaps_rollup").scan(/^(Rss|Pss|Swap):\s+(\d+) kB/).to_h
        { rss: rollup["Rss"].to_i * 1024, pss: rollup["Pss"].to_i * 1024, swap: rollup["Swap"].to_i * 1024 }
      rescue SystemCallError
        { rss: File.read("/proc/self/status")[/^VmRSS:\s+(\d+) kB/, 1].to_i * 1024, pss: nil, swap: nil }
      end

      def command_heapdump
        Dump.new(:dump_all, flag("gc")).run(@wire, @request, seconds(DUMP_MS))
      end

      def command_shapesdump
        raise Refusal.new("unsupported", "Ruby #{RUBY_VERSION} cannot dump shapes: it needs 3.3") if RUBY_VERSION < "3.3"

        Dump.new(:dump_shapes, flag("gc")).run(@wire, @request, seconds(DUMP_MS))
      end

      def command_fork
        pid = Agent.fork_apart { Process.kill(:STOP, Process.pid) }
        Process.detach(pid)
        @connection.copy = pid
        { pid: pid }
      end

      def command_stop
        Thread.new { Agent.stop }
        {}
      rescue ThreadError # no thread can begin
        Agent.stop
        {}
      end
    end
  end
end
