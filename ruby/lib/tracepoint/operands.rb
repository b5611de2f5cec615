# frozen_string_literal: true

module Tracepoint
  # The operands of a definition: their names, and the codes of their types. The results of
  # a span come last.
  class Operands
    # Type codes of the rbtrace note (docs/probes.md).
    TYPES = { Integer => 1, String => 2, Symbol => 3, Float => 4, bool: 5 }.freeze
    # The type is unknown: only nil was given so far.
    OPEN = 6
    MAX = 12
    # The end of a span starts with these two operands.
    SPAN_OWN = %w[duration_ns outcome].freeze

    # @return [Array<String, nil>] nil: shown as arg0, arg1 …
    attr_reader :names
    # @return [Array<Integer>]
    attr_reader :codes
    # @return [Array<Symbol>] the names that the caller sees
    attr_reader :labels
    # @return [Integer, nil] how many of them, at the end, were keywords of a first use;
    #   nil: declared
    attr_reader :keywords
    # @return [Hash{Symbol => Class, Symbol}] the results of a span, which are not among
    #   its arguments
    attr_reader :results

    # Create operands from the arguments of `define`: a Hash of names to types, or an Array
    # of types for operands without names.
    def self.declared(operands, results)
      raise TypeError, "results must be a Hash of names to types, not #{results.class}" unless results.is_a?(Hash)

      names = names_of(operands) + names_of(results)
      types = operands.is_a?(Hash) ? operands.values : operands
      new(names, types + results.values, results: results.size)
    end

    def self.names_of(operands)
      case operands
      when Hash then operands.keys.map { |name| Names.check(name, "an operand's name") }
      when Array then [nil] * operands.size
      else raise TypeError, "arguments must be a Hash of names to types, not #{operands.class}"
      end
    end
    private_class_method :names_of

    # Create operands from the arguments of a first use. Keywords are arguments with names.
    # If one is not a valid name, all keywords become one argument, a Hash.
    def self.inferred(arguments, keywords)
      keywords ||= {}
      unless nameable?(keywords, arguments.size)
        arguments += [keywords]
        keywords = {}
      end
      names = ([nil] * arguments.size) + keywords.keys.map(&:to_s)
      new(names, (arguments + keywords.values).map { |argument| infer(argument) }, keywords: keywords.size)
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

    def initialize(names, types, keywords: nil, results: 0)
      @names = names
      @types = types
      @keywords = keywords
      @codes = types.map { |type| code(type) }
      @labels = names.each_with_index.map { |name, i| (name || "arg#{i}").to_sym }.freeze
      raise DefinitionError, "duplicate argument names: #{names.join(", ")}" if labels.uniq.size < names.size

      @results = labels.last(results).zip(types.last(results)).to_h
    end

    # @return [String] such as `(id: Integer) -> (status: Integer)`
    def self.signature(arguments, results)
      lists = [arguments, results].map { |types| "(#{types.map { |name, type| "#{name}: #{type || "nil"}" }.join(", ")})" }
      results.empty? ? lists.first : lists.join(" -> ")
    end

    def to_s
      self.class.signature(arguments, results)
    end

    # Return whether an entry has these types, or types that are still open.
    def same_types?(entry)
      types = entry.operands.values
      wanted = arguments.values
      entry.results == results && types.size == wanted.size && types.zip(wanted).all? { |has, type| has.nil? || has == type }
    end

    def check_count(max, what = "arguments")
      return if codes.size <= max

      raise DefinitionError, "at most #{max} #{what}, not #{codes.size}"
    end

    def check_span
      check_count(MAX - SPAN_OWN.size, "arguments and results")
      taken = names & SPAN_OWN
      raise DefinitionError, "a span already has an argument #{taken.first}" unless taken.empty?
    end

    private

    def arguments
      labels.zip(@types).first(labels.size - results.size).to_h
    end

    def code(type)
      return OPEN if type.nil? && keywords

      TYPES.fetch(type) do
        raise DefinitionError, "an argument's type must be Integer, String, Symbol, Float or :bool, not #{type.inspect}"
      end
    end
  end
  private_constant :Operands
end
