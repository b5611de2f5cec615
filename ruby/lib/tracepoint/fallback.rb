# frozen_string_literal: true

# The same API without the extension: it checks definitions and arguments, and never
# traces.
#
# Only the main Ractor checks. The registry is a Ruby object that other Ractors cannot
# access, and a call without effect must not fail there.
module Tracepoint
  # See tracepoint/provider.rb.
  class Provider
    private_class_method :new

    attr_reader :name

    def initialize(name)
      @name = name
      freeze
    end

    def disable
      Registry.disabled[name] = true if Registry.main?
      self
    end

    def enable
      Registry.disabled.delete(name) if Registry.main?
      self
    end

    def enabled?
      !(Registry.main? && Registry.disabled[name])
    end
  end

  # The arguments of an entry. The types of an undeclared entry may be learned later.
  # keywords is nil for a declared entry.
  Shape = Struct.new(:labels, :types, :keywords, :results) do
    # @return [Array, nil] one value per operand; nil if the number differs
    def arrange(arguments)
      *positional, last = arguments
      values = keywords.to_i.positive? && flagged?(last) ? positional + named(last) : arguments
      values if values.size == types.size
    end

    def flagged?(argument)
      Hash === argument && Hash.ruby2_keywords_hash?(argument)
    end

    def learn(values)
      return unless types.include?(nil) && !types.frozen?

      settle(values.map { |value| Operands.infer(value) })
    end

    def settle(others)
      types.map!.with_index { |type, i| type || others[i] }
    end

    private

    # Return no values if the names differ.
    def named(hash)
      names = labels.last(keywords)
      hash.size == names.size && names.all? { |name| hash.key?(name) } ? hash.values_at(*names) : []
    end
  end
  private_constant :Shape

  # The methods of Probe and Span, without probes.
  module NoOp
    attr_reader :provider, :name

    def initialize(provider, name, shape)
      @provider = provider
      @name = name
      @shape = shape
      freeze
    end

    def operands
      @shape.labels.zip(@shape.types).to_h.freeze
    end

    def results
      @shape.results
    end

    def enabled?
      false
    end

    private

    def undeclared?
      !@shape.keywords.nil?
    end

    # Raises for declared entries, and in strict mode.
    def check(arguments)
      values = @shape.arrange(arguments)
      return check_values(values) if values
      return Registry.lose(:dropped) if undeclared? && !Tracepoint.strict

      raise ArgumentError, "wrong number of arguments for #{self} (given #{arguments.size}, expected #{operands.size})"
    end

    def check_values(values)
      @shape.learn(values) if undeclared?
      return unless Tracepoint.strict

      values = Strict.stringify(operands, values) if undeclared?
      Strict.check(self, values)
    end
  end
  private_constant :NoOp

  # See tracepoint/entry.rb.
  class Probe
    include NoOp
    private_class_method :new

    ruby2_keywords def fire(*arguments, &block)
      return false if block && arguments.empty? && !Tracepoint.strict

      arguments = values_of(yield) if block && arguments.empty?
      check(arguments)
      false
    end

    private

    # A probe without operands ignores its block's value.
    def values_of(value)
      return [] if operands.empty?

      value.is_a?(Array) ? value : [value]
    end
  end

  # See tracepoint/entry.rb.
  class Span
    include NoOp
    private_class_method :new

    def initialize(*)
      @measurement = Measurement.__send__(:new, self)
      super
    end

    ruby2_keywords def measure(*arguments)
      raise LocalJumpError, "no block given (yield)" unless block_given?

      check(arguments)
      results.empty? ? yield : yield(@measurement)
    end

    def start(*arguments)
      raise ArgumentError, "#{self} is not defined (Tracepoint.define_span): it can only be measured" if undeclared?

      check(arguments)
      @measurement
    end
  end

  # See tracepoint/entry.rb.
  class Measurement
    OUTCOMES = %i[returned raised thrown].freeze
    private_constant :OUTCOMES
    private_class_method :new

    def initialize(span)
      @span = span
      freeze
    end

    def []=(result, value)
      type = @span.results.fetch(result) { raise ArgumentError, "#{@span} has no result #{result.inspect}" }
      Strict.check_one("#{@span}: #{result}", type, value) if Tracepoint.strict
    end

    def finish(outcome = :returned)
      return if OUTCOMES.include?(outcome)

      raise ArgumentError, "an outcome is :returned, :raised or :thrown, not #{outcome.inspect}"
    end
  end

  # The errors of strict mode, for tests on platforms without probes.
  module Strict
    FITTING = {
      Integer => [Integer], Float => [Float, Integer], String => [String, Symbol], Symbol => [String, Symbol],
      bool: [TrueClass, FalseClass]
    }.freeze
    INTEGERS = ((-2**63 + 1)..(2**63 - 1)).freeze
    EXACT_FLOATS = (-2**53..2**53).freeze

    module_function

    # Converts the strings of an undeclared probe.
    def stringify(operands, values)
      operands.values.zip(values).map { |type, value| [String, Symbol].include?(type) && !value.nil? ? string_of(value) : value }
    end

    def string_of(value)
      "#{value}"
    rescue StandardError, ScriptError, SystemStackError
      value
    end

    def check(entry, arguments)
      entry.operands.zip(arguments) { |(name, type), value| check_one("#{entry}: #{name}", type, value) }
    end

    def check_one(what, type, value)
      return if value.nil? || type.nil?
      unless FITTING.fetch(type).any? { |fitting| fitting === value }
        raise TypeError, "#{what} must be #{type}, not #{Kernel.instance_method(:class).bind_call(value)}"
      end

      case value
      when Integer then check_range(what, type, value)
      when String, Symbol then raise ArgumentError, "#{what} contains a NUL" if value.to_s.b.include?("\0")
      end
    end

    def check_range(what, type, value)
      return if (type == Float ? EXACT_FLOATS : INTEGERS).cover?(value)

      raise RangeError, "#{what} does not fit #{type}"
    end
  end
  private_constant :Strict

  # All definitions.
  module Registry
    @lock = Mutex.new
    @names = {}
    @entries = []
    @providers = {}
    @disabled = {}
    @undeclared = {}
    @limit = 1000
    NOTHING = { converted: 0, dropped: 0, failed: 0, over_limit: 0 }.freeze
    @counters = NOTHING.dup
    @warned = {}
    TYPES = Operands::TYPES.invert.freeze
    private_constant :TYPES, :NOTHING

    class << self
      attr_reader :disabled
      attr_writer :limit

      def add(span, provider, name, _operand_names, codes, labels, keywords, results, _method)
        kind = span ? Span : Probe
        types = codes.map { |code| TYPES[code] }
        count = labels.size - results
        shape = Shape.new(labels.first(count), types.first(count), keywords, labels.zip(types).last(results).to_h.freeze)
        return kind.__send__(:new, nil, name.to_sym, shape) unless main?

        keys = ["", *(Names::SPAN_SUFFIXES if span)].map { |suffix| "#{provider}:#{name}#{suffix}" }
        locked do
          existing = @names.values_at(*keys).compact.first
          return existing if existing
          return if keywords && !below_limit?

          entry = kind.__send__(:new, provider_of(provider.to_sym), name.to_sym, shape)
          keys.each { |key| @names[key] = entry }
          @entries << entry
          @undeclared[entry] = shape if keywords
          entry
        end
      end

      def declared(entry, codes)
        shape = @undeclared.delete(entry) if main?
        shape&.settle(codes.map { |code| TYPES[code] })
        shape&.keywords = nil
        entry
      end

      def limit
        main? ? @limit : 0
      end

      def below_limit?
        @undeclared.size < @limit
      end

      # Count an event. If there is a message, warn the first time.
      def lose(counter, message = nil)
        return unless main?

        @counters[counter] += 1
        return if message.nil? || @warned[counter]

        @warned[counter] = true
        warn_of(message)
      end

      def find(name)
        return unless main? && [Symbol, String].any? { |kind| kind === name } && name.to_s.ascii_only?

        name = name.to_s
        name = "#{DEFAULT_PROVIDER}:#{name}" unless name.include?(":")
        locked { @names[name] }
      end

      def entries
        main? ? locked { @entries.dup } : []
      end

      def providers
        main? ? locked { @providers.values } : []
      end

      def counters
        main? ? @counters.dup : NOTHING
      end

      def figures
        { sites: 0, images: 0, bytes: 0 }
      end

      if defined?(Ractor)
        def main?
          Ractor.current == MAIN
        end
      else
        def main?
          true
        end
      end

      private

      # A signal handler must not lock. It does not need to: it runs in the main thread,
      # and each step below is atomic.
      def locked(&block)
        @lock.synchronize(&block)
      rescue ThreadError
        yield
      end

      # Warn with the program's line that made the call.
      def warn_of(message)
        place = caller_locations.find { |location| !location.path.start_with?(__dir__) }
        warn("#{place&.path}:#{place&.lineno}: warning: #{message}")
      rescue StandardError
        nil
      end

      def provider_of(name)
        @providers[name] ||= Provider.__send__(:new, name)
      end
    end

    MAIN = Ractor.current if defined?(Ractor)
    private_constant :MAIN if defined?(Ractor)
  end

  class << self
    ruby2_keywords def fire(name, *arguments, &block)
      return false unless Registry.main?

      entry = Registry.find(name)
      raise ArgumentError, "no probe #{name}: #{NEEDS_DEFINITION}" if entry.nil? && block && arguments.empty?

      entry ||= first_use(:event, name, arguments)
      return false if entry.nil? || lost?(entry, Span, "is a span: it is measured, not fired")

      entry.fire(*arguments, &block)
    end

    ruby2_keywords def span(name, *arguments, &block)
      raise LocalJumpError, "no block given (yield)" unless block
      return yield unless Registry.main?

      entry = Registry.find(name) || first_use(:span, name, arguments)
      return yield if entry.nil? || lost?(entry, Probe, "is not a span")

      entry.measure(*arguments, &block)
    end

    def enabled?(name)
      Names.text_of(name, "a probe's name")
      false
    end

    def strict
      Registry.main? && @strict
    end

    attr_writer :strict

    def enable
      @off = false
      nil
    end

    def disable
      @off = true
      nil
    end

    def toggle
      disabled? ? enable : disable
    end

    def disabled?
      Registry.main? && @off
    end

    private

    # Detect the wrong kind of entry. Raises for declared entries, and in strict mode.
    def lost?(entry, kind, message)
      return false unless entry.is_a?(kind)
      raise ArgumentError, "#{entry} #{message}" if strict || !entry.__send__(:undeclared?)

      Registry.lose(:dropped)
      true
    end

    def first_use(kind, name, arguments)
      *positional, last = arguments
      keywords = last if Hash === last && Hash.ruby2_keywords_hash?(last)
      made = declare(kind, name, keywords ? positional : arguments, keywords) if Registry.below_limit?
      return made if Entry === made

      made ? Registry.lose(:dropped, made) : over_limit
      nil
    end

    def over_limit
      message = "too many undeclared probes: the limit is #{undeclared_limit}; declare them with Tracepoint.define, " \
                "or raise Tracepoint.undeclared_limit"
      raise DefinitionError, message if strict

      Registry.lose(:over_limit, message)
    end
  end

  NEEDS_DEFINITION = "the block form needs one that is defined (Tracepoint.define)"
  private_constant :NEEDS_DEFINITION

  @strict = false
  @off = false
end
