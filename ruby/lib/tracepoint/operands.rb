# frozen_string_literal: true

module Tracepoint
  # The operands of a definition: their names, and their types' codes.
  class Operands
    # Codes as they stand in the rbtrace note (docs/probes.md).
    TYPES = { Integer => 1, String => 2, Symbol => 3, Float => 4, bool: 5 }.freeze
    # Only nil was given so far, which says nothing of the type.
    OPEN = 6
    MAX = 12
    # A span's end has two of its own in front.
    SPAN_OWN = %w[duration_ns outcome].freeze

    # @return [Array<String, nil>] nil: shown as arg0, arg1 …
    attr_reader :names
    # @return [Array<Integer>]
    attr_reader :codes
    # @return [Array<Symbol>] the names that the caller sees
    attr_reader :labels
    # @return [Integer, nil] how many of them were keywords of a first use, the
    #   last ones; nil: declared
    attr_reader :keywords

    # From what `define` is given: a Hash of names to types, or, for operands
    # without names, an Array of types.
    def self.declared(operands)
      case operands
      when Hash
        names = operands.keys.map { |name| Names.check(name, "an operand's name") }
        new(names, operands.values)
      when Array then new([nil] * operands.size, operands)
      else raise TypeError, "arguments must be a Hash of names to types, not #{operands.class}"
      end
    end

    # From the arguments of a first use. Keywords are arguments with names; if
    # one cannot be a name, all of them are one argument, their Hash.
    def self.inferred(arguments, keywords)
      keywords ||= {}
      unless nameable?(keywords, arguments.size)
        arguments += [keywords]
        keywords = {}
      end
      names = ([nil] * arguments.size) + keywords.keys.map(&:to_s)
      new(names, (arguments + keywords.values).map { |argument| infer(argument) }, keywords.size)
    end

    def self.nameable?(keywords, lead)
      keywords.each_key.all? do |key|
        key.is_a?(Symbol) && Names.name?(key.to_s) && !SPAN_OWN.include?(key.to_s) && (lead.zero? || !key.match?(/\Aarg\d/))
      end
    end
    private_class_method :nameable?

    # @return [Class, Symbol, nil] nil: open
    def self.infer(argument)
      case argument
      when nil then nil
      when Integer then Integer
      when Float then Float
      when Symbol then Symbol
      when true, false then :bool
      else String
      end
    end

    def initialize(names, types, keywords = nil)
      @names = names
      @types = types
      @keywords = keywords
      @codes = types.map { |type| code(type) }
      @labels = names.each_with_index.map { |name, i| (name || "arg#{i}").to_sym }.freeze
      raise DefinitionError, "duplicate argument names: #{names.join(", ")}" if labels.uniq.size < names.size
    end

    def to_s
      labels.zip(@types).map { |label, type| "#{label}: #{type || "nil"}" }.join(", ")
    end

    # Does an entry have these, or none that speaks against them?
    def same_types?(entry)
      types = entry.operands.values
      types.size == @types.size && types.zip(@types).all? { |has, wanted| has.nil? || has == wanted }
    end

    def check_count(max)
      return if codes.size <= max

      raise DefinitionError, "at most #{max} arguments, not #{codes.size}"
    end

    def check_span
      check_count(MAX - SPAN_OWN.size)
      taken = names & SPAN_OWN
      raise DefinitionError, "a span already has an argument #{taken.first}" unless taken.empty?
    end

    private

    def code(type)
      return OPEN if type.nil? && keywords

      TYPES.fetch(type) do
        raise DefinitionError, "an argument's type must be Integer, String, Symbol, Float or :bool, not #{type.inspect}"
      end
    end
  end
  private_constant :Operands
end
