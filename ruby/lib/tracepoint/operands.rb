# frozen_string_literal: true

module Tracepoint
  # The operands of a definition: their names, and their types' codes.
  class Operands
    # Codes as they stand in the rbtrace note (docs/probes.md).
    TYPES = { Integer => 1, String => 2, Symbol => 3, Float => 4, bool: 5 }.freeze
    MAX = 12
    # A span's end has two of its own in front.
    SPAN_OWN = %w[duration_ns outcome].freeze

    # @return [Array<String, nil>] nil: shown as arg0, arg1 …
    attr_reader :names
    # @return [Array<Integer>]
    attr_reader :codes
    # @return [Hash{Symbol => Class, Symbol}] what the caller sees
    attr_reader :to_h

    # From what `define` is given: a Hash of names to types, or, for operands
    # without names, an Array of types.
    def self.declared(operands)
      case operands
      when Hash
        names = operands.keys.map { |name| Names.check(name, "an operand's name") }
        new(names, operands.values)
      when Array then new([nil] * operands.size, operands)
      else raise TypeError, "operands are a Hash of names to types, not #{operands.class}"
      end
    end

    # From the arguments of a first fire.
    def self.inferred(arguments)
      new([nil] * arguments.size, arguments.map { |argument| infer(argument) })
    end

    def self.infer(argument)
      case argument
      when Integer then Integer
      when Float then Float
      when Symbol then Symbol
      when true, false then :bool
      else String
      end
    end
    private_class_method :infer

    def initialize(names, types)
      @names = names
      @codes = types.map { |type| code(type) }
      @to_h = names.each_with_index.map { |name, i| (name || "arg#{i}").to_sym }.zip(types).to_h.freeze
      raise DefinitionError, "two operands have one name: #{names.join(", ")}" if @to_h.size < names.size
    end

    def check_count(max)
      return if codes.size <= max

      raise DefinitionError, "at most #{max} operands, not #{codes.size}"
    end

    def check_span
      check_count(MAX - SPAN_OWN.size)
      taken = names & SPAN_OWN
      raise DefinitionError, "a span has an operand #{taken.first} of its own" unless taken.empty?
    end

    private

    def code(type)
      TYPES.fetch(type) do
        raise DefinitionError, "an operand's type is Integer, String, Symbol, Float or :bool, not #{type.inspect}"
      end
    end
  end
  private_constant :Operands
end
