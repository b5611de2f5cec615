# frozen_string_literal: true

# The same API where there is no extension: definitions and arguments are
# checked, and nothing is ever traced.
#
# Only the main Ractor checks: the registry is a Ruby object, which others
# cannot see, and a call that does nothing must not fail there.
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

  # What Probe and Span do, without probes.
  module NoOp
    attr_reader :provider, :name, :operands

    def initialize(provider, name, operands)
      @provider = provider
      @name = name
      @operands = operands
      freeze
    end

    def enabled?
      false
    end

    private

    def check_count(given)
      return if given == @operands.size

      raise ArgumentError, "wrong number of arguments for #{self} (given #{given}, expected #{@operands.size})"
    end
  end
  private_constant :NoOp

  # See tracepoint/entry.rb.
  class Probe
    include NoOp
    private_class_method :new

    def fire(*arguments, &block)
      return false if block && arguments.empty? && !Tracepoint.strict

      arguments = values_of(yield) if block && arguments.empty?
      check_count(arguments.size)
      Strict.check(self, arguments) if Tracepoint.strict
      false
    end

    private

    # A probe without operands ignores what its block returns.
    def values_of(value)
      return [] if operands.empty?

      value.is_a?(Array) ? value : [value]
    end
  end

  # See tracepoint/entry.rb.
  class Span
    include NoOp
    private_class_method :new

    def measure(*arguments)
      check_count(arguments.size)
      Strict.check(self, arguments) if Tracepoint.strict
      yield
    end
  end

  # What strict mode raises, for a program that is tested where there are no
  # probes.
  module Strict
    FITTING = {
      Integer => [Integer], Float => [Float, Integer], String => [String, Symbol], Symbol => [String, Symbol],
      bool: [TrueClass, FalseClass]
    }.freeze
    INTEGERS = ((-2**63 + 1)..(2**63 - 1)).freeze
    EXACT_FLOATS = (-2**53..2**53).freeze

    module_function

    def check(entry, arguments)
      entry.operands.zip(arguments) { |(name, type), value| check_one("#{entry}: #{name}", type, value) }
    end

    def check_one(what, type, value)
      return if value.nil?
      unless FITTING.fetch(type).any? { |fitting| fitting === value }
        raise TypeError, "#{what} must be #{type}, not #{value.class}"
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

  # Everything that was defined.
  module Registry
    @lock = Mutex.new
    @names = {}
    @entries = []
    @providers = {}
    @disabled = {}

    class << self
      attr_reader :disabled

      def add(span, provider, name, _operand_names, _codes, operands)
        kind = span ? Span : Probe
        return kind.__send__(:new, nil, name.to_sym, operands) unless main?

        keys = ["", *(Names::SPAN_SUFFIXES if span)].map { |suffix| "#{provider}:#{name}#{suffix}" }
        locked do
          existing = @names.values_at(*keys).compact.first
          return existing if existing

          entry = kind.__send__(:new, provider_of(provider.to_sym), name.to_sym, operands)
          keys.each { |key| @names[key] = entry }
          @entries << entry
          entry
        end
      end

      def find(name)
        unless name.is_a?(Symbol) || name.is_a?(String)
          raise TypeError, "a probe's name is a Symbol or a String, not #{name.class}"
        end
        return unless main? && name.to_s.ascii_only?

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
        { converted: 0, dropped: 0, failed: 0 }
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

      # A signal's handler may not lock. It need not: it has the main thread,
      # and no step below can be interrupted half done.
      def locked(&block)
        @lock.synchronize(&block)
      rescue ThreadError
        yield
      end

      def provider_of(name)
        @providers[name] ||= Provider.__send__(:new, name)
      end
    end

    MAIN = Ractor.current if defined?(Ractor)
    private_constant :MAIN if defined?(Ractor)
  end

  class << self
    def fire(name, *arguments, &block)
      return false unless Registry.main?

      entry = Registry.find(name) || declare_unless(block && arguments.empty?, name, arguments)
      raise ArgumentError, "#{entry} is a span: it is measured, not fired" if entry.is_a?(Span)

      entry.fire(*arguments, &block)
    end

    def span(name, *arguments, &block)
      raise LocalJumpError, "no block given (yield)" unless block
      return yield unless Registry.main?

      entry = Registry.find(name) || declare(:span, name, arguments)
      raise ArgumentError, "#{entry} is no span" unless entry.is_a?(Span)

      entry.measure(*arguments, &block)
    end

    def enabled?(name)
      Registry.find(name)
      false
    end

    def strict
      Registry.main? && @strict
    end

    attr_writer :strict

    private

    def declare_unless(impossible, name, arguments)
      return declare(:event, name, arguments) unless impossible

      raise ArgumentError, "no probe #{name}: the block form needs one that is defined (Tracepoint.define)"
    end
  end

  @strict = false
end
