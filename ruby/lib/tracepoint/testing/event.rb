# frozen_string_literal: true

module Tracepoint
  module Testing
    # A hit of a probe. A span has two: its beginning, and its end with duration, outcome,
    # and results.
    class Event
      EVENT, SPAN_BEGIN, SPAN_END = *0..2
      SUFFIXES = ["", *Names::SPAN_SUFFIXES].freeze
      OUTCOMES = %i[returned raised thrown].freeze
      private_constant :EVENT, :SPAN_BEGIN, :SPAN_END, :SUFFIXES, :OUTCOMES

      # @return [Symbol] the provider's name
      attr_reader :provider
      # @return [Symbol] the probe's name: `:order`, `:pay__begin`, `:pay__end`
      attr_reader :name
      # @return [Hash{Symbol => Object}] values by name, as a tracer reads them:
      #   converted; strings in UTF-8, cut at a NUL
      attr_reader :arguments
      # @return [Hash{Symbol => Object}] results of a span's end, else empty
      attr_reader :results
      # @return [Integer, nil] nanoseconds, of a span's end; nil if the span began
      #   outside of the capture
      attr_reader :duration_ns
      # @return [Symbol, nil] outcome of a span's end: `:returned`, `:raised`, `:thrown`
      attr_reader :outcome

      # @api private
      # @param values [Array] the probe's operands
      def initialize(entry, role, values)
        @provider = entry.provider.name
        @name = :"#{entry.name}#{SUFFIXES[role]}"
        @span = (entry.name if role == SPAN_END)
        @duration_ns = @outcome = nil
        read_end(values.first(2)) if @span
        values = values.drop(2) if @span
        @arguments = named(entry.operands, values)
        @results = @span ? named(entry.results, values.drop(entry.operands.size)) : {}.freeze
        freeze
      end

      # @return [Array<String>] `provider:name`; a span's name stands for its end
      def names
        [name, *@span].map { |name| "#{provider}:#{name}" }
      end

      # @return [Hash{Symbol => Object}] all values that a tracer has by name; a span's
      #   end includes duration_ns, outcome, and the results
      def to_h
        (@span ? { duration_ns: duration_ns, outcome: outcome } : {}).merge(arguments, results)
      end

      # @return [String] such as `shop:order(id: 7)`
      def to_s
        "#{names.first}(#{to_h.map { |name, value| "#{name}: #{value.inspect}" }.join(", ")})"
      end

      # @return [String]
      def inspect
        "#<#{self.class} #{self}>"
      end

      private

      def read_end((duration, outcome))
        @duration_ns = duration unless duration.negative?
        @outcome = OUTCOMES.fetch(outcome)
      end

      def named(types, values)
        types.zip(values).to_h { |(name, type), value| [name, type == Symbol ? symbol(value) : value] }.freeze
      end

      # Invalid text cannot become a Symbol.
      def symbol(value)
        value&.valid_encoding? ? value.to_sym : value
      end
    end
  end
end
