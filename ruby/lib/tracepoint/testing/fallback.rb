# frozen_string_literal: true

# Captures without the extension: the no-op's methods fire to the test. Loaded by tests
# only.
module Tracepoint
  module Registry
    @captures = 0
    @captured = []
    @capturer = nil # pid: a child does not take part in its parent's capture

    class << self
      def begin_capture
        locked do
          forget_captures unless @capturer == $$
          @captures += 1
          @captured.size
        end
      end

      def captured(mark)
        locked { @captured.drop(mark) }
      end

      def end_capture
        locked do
          @captures -= 1 if capturing?
          forget_captures unless capturing?
        end
      end

      def capture(event)
        locked { @captured << event if capturing? }
      end

      # A method's wrapper asks its span instead.
      def watch(_span, _name, _or_block); end

      def capturing?
        main? && @captures.positive? && @capturer == $$
      end

      private

      def forget_captures
        @captures = 0
        @captured = []
        @capturer = $$
      end
    end
  end

  # Converts a value to a probe's operand, by the rules of tracepoint.rb.
  module Conversion
    INTEGERS = Strict::INTEGERS
    LARGEST_EXPONENT = 1024

    module_function

    def fits?(type, value)
      Strict.check_one("", type, value)
      true
    rescue RangeError, TypeError, ArgumentError
      false
    end

    def convert(type, value)
      case type
      when :bool then value if [true, false].include?(value)
      when nil then nil
      else value.nil? ? nil : public_send(type.name.downcase, value)
      end
    end

    def integer(value)
      case value
      when Integer then value.clamp(INTEGERS.begin, INTEGERS.end)
      when Float then from_float(value)
      when true then 1
      when false then 0
      end
    end

    def from_float(value)
      return if value.nan?

      value.infinite? ? (value.positive? ? INTEGERS.end : INTEGERS.begin) : integer(value.truncate)
    end

    def float(value)
      case value
      when Float then value
      when Integer then value.bit_length > LARGEST_EXPONENT ? (value.positive? ? 1 : -1) * Float::INFINITY : value.to_f
      end
    end

    def string(value)
      case value
      when String then String.new(value)
      when Symbol then value.to_s
      end&.b&.slice(/\A[^\0]*/n)&.force_encoding(Encoding::UTF_8)
    end

    def symbol(value)
      string(value)
    end
  end
  private_constant :Conversion

  # Methods shared by probes and spans.
  module Capturing
    def enabled?
      Registry.capturing? && provider.enabled? && !Tracepoint.disabled?
    end

    private

    def emit(role, types, values, own = [])
      return false unless enabled?

      values = Strict.stringify(operands, values) + values.drop(operands.size) if undeclared?
      pairs = types.values.zip(values)
      Registry.lose(:converted) unless pairs.all? { |type, value| Conversion.fits?(type, value) }
      Registry.capture([self, role, own + pairs.map { |type, value| Conversion.convert(type, value) }])
      true
    end
  end
  private_constant :Capturing

  # See tracepoint/testing.rb.
  module CapturingProbe
    include Capturing

    ruby2_keywords def fire(*arguments, &block)
      return super unless enabled?

      arguments = block_values(&block) if block && arguments.empty?
      return false unless arguments

      super(*arguments, &nil)
      values = @shape.arrange(arguments)
      values ? emit(0, operands, values) : false
    end

    private

    # @return [Array, nil] nil: the event is dropped
    def block_values
      return values_of(yield) if Tracepoint.strict

      values = values_of(yield)
      return values if values.size == operands.size

      Registry.lose(:dropped)
    rescue StandardError, ScriptError, SystemStackError
      raise if Tracepoint.strict

      Registry.lose(:dropped)
    end
  end
  private_constant :CapturingProbe

  # See tracepoint/testing.rb.
  module CapturingSpan
    include Capturing

    OUTCOMES = %i[returned raised thrown].freeze

    ruby2_keywords def measure(*arguments, &block)
      return measure_from_outside(arguments, super) unless enabled? && block

      check(arguments)
      values = @shape.arrange(arguments)
      values ? measure_captured(record(values, kept: !results.empty?), &block) : yield
    end

    def start(*arguments)
      untraced = super
      enabled? ? record(arguments, kept: true) : untraced
    end

    private

    # @param kept [Boolean] whether to copy strings in their current state
    def record(arguments, kept:)
      emit_begin(arguments)
      Recording.__send__(:new, self, kept ? arguments.map { |value| Recording.kept(value) } : arguments)
    end

    def emit_begin(values)
      emit(1, operands, values)
    end

    # @param values [Array] values of the arguments, then of the results
    def emit_end(duration, outcome, values)
      emit(2, operands.merge(results), values, [duration, OUTCOMES.index(outcome)])
    end

    # Emits an end if a capture began in the meantime.
    def measure_from_outside(arguments, value)
      values = @shape.arrange(arguments) if enabled?
      emit_end(-1, :returned, values + ([nil] * results.size)) if values
      value
    end

    def measure_captured(recording)
      outcome = :thrown
      value = results.empty? ? yield : yield(recording)
      outcome = :returned
      value
    rescue Exception # rubocop:disable Lint/RescueException -- raised again
      outcome = :raised
      raise
    ensure
      recording.finish(outcome)
    end
  end
  private_constant :CapturingSpan

  # The shared measurement of spans that began outside of a capture.
  module CapturingMeasurement
    def finish(outcome = :returned)
      super
      @span.__send__(:emit_end, -1, outcome, [nil] * (@span.operands.size + @span.results.size))
      nil
    end
  end
  private_constant :CapturingMeasurement

  # A captured span.
  class Recording < Measurement
    def self.kept(value)
      String === value ? String.new(value) : value
    end

    def initialize(span, arguments) # rubocop:disable Lint/MissingSuper -- super freezes
      @span = span
      @arguments = arguments
      @results = span.results.transform_values { nil }
      @ended = false
      @started = now
    end

    def []=(result, value)
      super
      @results[result] = self.class.kept(value)
    end

    def finish(outcome = :returned)
      return super unless CapturingSpan::OUTCOMES.include?(outcome) # super raises
      return if @ended

      @ended = true
      @span.__send__(:emit_end, now - @started, outcome, @arguments + @results.values)
      nil
    end

    private

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
    end
  end
  private_constant :Recording

  # From now on, traced methods are wrapped.
  module Methods
    class << self
      prepend(Module.new do
        private

        def wraps?
          true
        end
      end)
    end

    Wrapper.prepend(Module.new do
      private

      # Without the extension, global variables have no C getters.
      def global(_name, otherwise)
        otherwise
      end
    end)
  end

  Probe.prepend CapturingProbe
  Span.prepend CapturingSpan
  Measurement.prepend CapturingMeasurement

  class << self
    prepend(Module.new do
      def enabled?(name)
        super || (Registry.find(name)&.enabled? ? true : false)
      end
    end)
  end
end
