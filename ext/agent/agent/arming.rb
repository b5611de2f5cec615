# frozen_string_literal: true

module Tracepoint
  module Agent
    # The armed hook. A process has at most one: docs/agent/arming.md.
    class Arming
      MODES = { "empty" => 0, "ring" => 1, "table" => 2, "slow" => 3, "sites" => 4 }.freeze
      FLAGS = { "methods" => 1, "c_calls" => 2, "gc" => 4, "raise" => 8, "objects" => 16, "sites" => 32,
                "cpu" => 64, "whole" => 128 }.freeze
      INNER = 4 | 16
      ANY = 1 | 2 | 8 | INNER
      SELECT = 256
      HISTOGRAMS = 512
      TARGETS = 1024
      FINE = 2048
      LIMITS = { "max_methods" => [16_384, 16, 1 << 20], "max_blocks" => [1 << 20, 16, 1 << 21],
                 "max_streams" => [128, 1, 4096], "ring_records" => [262_144, 256, 1 << 24] }.freeze
      OFFSETS = %w[cfp_ep me_owner me_def def_original_id ment_imemo svar_imemo local_flag ec_thread].freeze
      ALIGNED = %w[cfp_ep me_owner me_def def_original_id ec_thread].freeze
      KINDS = { nil => 0, "instance" => 1, "singleton" => 2 }.freeze
      SELECTOR = %w[owner kind name expressions].freeze
      COUNTERS = %i[state methods blocks streams conditions no_stream no_method too_deep orphans abandoned no_block
                    no_values mismatch in_other_ractors duplicates].freeze
      NEWEST = [4, 1].freeze # newest tested minor version of Ruby
      CALIBRATION_NS = 20_000_000
      ARGUMENTS = [*FLAGS.keys, *LIMITS.keys, "mode", "threshold_ns", "select", "histograms", "digits", "offsets",
                   "limit_ms", "untested", "targets"].freeze
      WITH_VALUES = [1, 3].freeze # ring, slow

      # Return the required level. Wrong offsets or an untested Ruby can crash the program,
      # and expressions are code.
      def self.needs(arguments)
        select = Array(arguments["select"])
        return Consent::ALL if arguments["offsets"] || arguments["untested"]
        return Consent::ALL if select.any? { |one| one.is_a?(Hash) && one["expressions"] }

        select.empty? ? "observe" : "trace"
      end

      def self.status
        COUNTERS.zip(Native.counters).to_h.merge(Clock.pair)
      end

      def initialize(arguments)
        @arguments = arguments
        @mode = MODES[arguments["mode"]] or refuse("mode")
        @programs = []
        @selectors = selectors
        @targets = targets
        @limit_ms = number("limit_ms", 100, 1, 60_000)
        check_version unless boolean("untested", false)
      end

      # @return [Hash, Array<IO>] the reply, and the files to send with it
      def call
        @targets&.check
        packed = pack
        watch_ractors
        Expressions.use(@programs, @limit_ms) if @programs.any?
        data, control, size, control_size, sealed = armed(packed)
        watch([data, control]) if @programs.any?
        Ractors.note_others
        reply = { size: size, control_size: control_size, sealed: sealed == 1, overhead: overhead }
        reply.merge!(hook_targets([data, control])) if @targets
        [reply, [data, control]]
      end

      private

      # Newer patch releases are allowed: the hook checks what it reads first against Ruby.
      def check_version
        return if (RUBY_VERSION.split(".").first(2).map(&:to_i) <=> NEWEST) <= 0

        raise Refusal.new("untested", "Ruby #{RUBY_VERSION} is newer than #{NEWEST.join(".")}, the newest that the " \
                                      "agent's hook was tested with")
      end

      # If other events are requested as well, only the inner events are left out.
      def watch_ractors
        return if (flags & INNER).zero? || Ractors.watch || (flags & ~INNER & ANY).positive?

        raise Refusal.new("state", "Ruby #{RUBY_VERSION} crashes if a Ractor starts while collections or new " \
                                   "objects are hooked, and this program has #{Facts.ractors} Ractors")
      end

      def hook_targets(files)
        { targets: Targets.use(@targets), near: @targets.near, native: @targets.native, left_out: @targets.left_out,
          unmatched: @targets.unmatched, without_code: @targets.without_code }
      rescue ThreadError => e
        Native.release
        files.each(&:close)
        raise Refusal.no_thread(e)
      end

      # Expressions are evaluated only if a watcher can end them.
      def watch(files)
        Expressions.watch
      rescue ThreadError => e
        Native.release
        files.each(&:close)
        raise Refusal.no_thread(e)
      end

      # Must not be interrupted: killing the thread here would leave descriptors open that
      # no IO object owns yet.
      def armed(packed)
        Thread.handle_interrupt(Object => :never) do
          answer = Native.arm(packed)
          raise Refusal.new("system", SystemCallError.new(nil, answer).message, errno: answer) if answer.is_a?(Integer)

          answer.first(2).map { |fd| IO.for_fd(fd) } + answer.drop(2)
        end
      end

      def refuse(name)
        raise Refusal.new("argument", "#{name} is missing or out of range")
      end

      def pack
        limits = LIMITS.map { |name, (default, least, most)| number(name, default, least, most) }
        refuse("ring_records") if limits.last.to_s(2).count("1") != 1
        threshold = number("threshold_ns", 0, 0, 1 << 62)
        refuse("threshold_ns") if @mode == 3 && threshold.zero?
        ticks, ns = Clock.now(CALIBRATION_NS)
        [@mode, flags, Clock::KIND, Process.pid, Clock.mult(ticks, ns), *Clock::START, ticks, ns, threshold,
         @limit_ms * 1_000_000, *limits, *offsets, @selectors.size].pack("L4Q7L4L10") << @selectors.join
      end

      def number(name, default, least, most)
        value = @arguments.fetch(name, default)
        refuse(name) unless value.is_a?(Integer) && value.between?(least, most)
        value
      end

      def boolean(name, default)
        value = @arguments.fetch(name, default)
        refuse(name) unless [true, false].include?(value)
        value
      end

      def flags
        refuse("cpu") if @mode != 3 && %w[cpu whole].any? { |name| boolean(name, false) }
        FLAGS.sum { |name, bit| boolean(name, name == "methods") ? bit : 0 } |
          (@selectors.empty? ? 0 : SELECT) | (boolean("histograms", true) ? HISTOGRAMS : 0) |
          (number("digits", 2, 2, 3) == 3 ? FINE : 0) | (@targets ? TARGETS : 0)
      end

      def offsets
        given = @arguments["offsets"]
        return [0] * (1 + OFFSETS.size) if given.nil?

        refuse("offsets") unless given.is_a?(Hash) && given.keys.sort == OFFSETS.sort
        values = given.values_at(*OFFSETS)
        refuse("offsets") unless values.all? { |value| value.is_a?(Integer) && value.between?(0, 1024) }
        refuse("offsets") unless given.values_at(*ALIGNED).all? { |value| (value % 8).zero? }
        [1, *values]
      end

      def selectors
        given = @arguments.fetch("select", nil) || []
        refuse("select") unless given.is_a?(Array) && given.size <= 1024
        given.map { |selector| selector(selector) }
      end

      # Return nil if all methods are hooked at once.
      def targets
        return unless boolean("targets", false)

        refuse("targets") if @selectors.empty? || !boolean("methods", true)
        Targets.new(@arguments["select"])
      end

      def selector(map)
        refuse("select") unless map.is_a?(Hash) && (map.keys - SELECTOR).empty? && KINDS.key?(map["kind"])
        owner, name = map.values_at("owner", "name")
        refuse("select") unless [owner, name].all? { |text| text.nil? || (text.is_a?(String) && text.bytesize.between?(1, 1024)) }
        refuse("select") if owner&.include?("\0")
        id = name ? Native.id_of(name.to_sym) : 0
        owner = owner.to_s.b
        @programs << program(map["expressions"])
        wants = (@programs.last || []).map(&:wants).inject(0, :|)
        [KINDS[map["kind"]], wants, owner.bytesize, id].pack("S2LQ") << owner << ("\0" * (-owner.bytesize % 8))
      end

      # Return nil for a selector without expressions.
      def program(given)
        return if given.nil? || given == []

        refuse("select") unless given.is_a?(Array) && given.size <= Expressions::MOST
        raise Refusal.new("argument", "expressions are for the modes ring and slow") unless WITH_VALUES.include?(@mode)

        given.map do |text|
          refuse("select") unless text.is_a?(String) && text.bytesize.between?(1, Expressions::MOST_BYTES)
          Expressions::Expression.new(text)
        end
      end

      # Return the effects that remain after disarming.
      def overhead
        said = []
        said << "compiled code is thrown away (#{Facts.jit})" if Facts.jit && (flags & throws_away).positive?
        said << "calls of C methods stay slower" if boolean("c_calls", false)
        said
      end

      # TracePoints also discard compiled code. With targets, a JIT can compile the methods
      # again, but ZJIT compiles each method only a few times (4.0: twice).
      def throws_away
        calls = @targets && Facts.jit != "zjit" ? 2 : 3
        Ractors::FRAGILE ? INNER | calls : calls
      end
    end
  end
end
