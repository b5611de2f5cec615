# frozen_string_literal: true

module Tracepoint
  module Testing
    # Events of one probe, with some of their arguments.
    # @api private
    class Pattern
      # @return [String] of a failed assertion's message
      def self.list(events)
        return "Nothing fired." if events.empty?

        "Fired: #{events.join(", ")}"
      end

      # @param name [Symbol, String, Probe, Span] as for {Tracepoint.fire}; a
      #   span's means its end
      # @param arguments [Hash{Symbol => #===}] also duration_ns, outcome and
      #   results of a span
      # @raise [ArgumentError] the probe has no such argument
      def initialize(name, arguments = {})
        @name = Entry === name ? "#{name.provider}:#{name.name}" : Names.split(name).join(":")
        @arguments = arguments
        check(Registry.find(@name))
      end

      # @return [Boolean]
      def ===(event)
        return false unless event.names.include?(@name)

        values = event.to_h
        @arguments.all? { |name, wanted| values.key?(name) && wanted === values[name] }
      end

      # @return [String]
      def to_s
        list = @arguments.map { |name, wanted| "#{name}: #{wanted.inspect}" }
        list.empty? ? @name : "#{@name} with #{list.join(", ")}"
      end

      private

      # A word that is wrong would make `refute_fired` true.
      def check(entry)
        return unless entry

        own = Span === entry ? Operands::SPAN_OWN.map(&:to_sym) : []
        unknown = @arguments.keys - own - entry.operands.keys - entry.results.keys
        raise ArgumentError, "#{entry} has no argument #{unknown.first.inspect}" unless unknown.empty?
      end
    end
    private_constant :Pattern
  end
end
