# frozen_string_literal: true

module Tracepoint
  module Testing
    # Matches events of one probe with some of their arguments.
    # @api private
    class Pattern
      # Maximum number of events in a message.
      LISTED = 20
      private_constant :LISTED

      # @param name [Symbol, String, Probe, Span] as for {Tracepoint.fire}, or the Ruby
      #   name of a traced method, such as `"Shop::Till#pay!"`; a span's name stands for
      #   its end
      # @param arguments [Hash{Symbol => #===}] may include duration_ns, outcome, and
      #   results of a span
      def initialize(name, arguments = {})
        @ruby = String === name && name.match?(/[#.]/)
        @name = @ruby ? name : full_name(name)
        @arguments = arguments
      end

      # The probe may have been defined in the meantime.
      # @param events [Array<Event>] all captured events
      # @return [Array<Event>] the matching events
      # @raise [ArgumentError] unknown argument, or no such method is traced
      def select(events)
        @names = @ruby ? Methods.named(@name) : [@name]
        raise ArgumentError, "no traced method is called #{@name}" if @names.empty?

        check(Registry.find(@names.last))
        events.select { |event| fired_by?(event) && matches?(event.to_h) }
      end

      # @param events [Array<Event>] the same as in the preceding call of {#select}
      # @return [String] part of a failure message; lists the probe's own events first
      def report(events)
        missing = "There is no such probe. " if @names.none? { |name| Registry.find(name) }
        return "#{missing}Nothing fired." if events.empty?

        lines = events.partition { |event| fired_by?(event) }.flatten(1)
        more = "… and #{lines.size - LISTED} more" if lines.size > LISTED
        ["#{missing}Fired:", *lines.first(LISTED), *more].join("\n  ")
      end

      # @return [String]
      def to_s
        list = @arguments.map { |name, wanted| "#{name}: #{wanted.inspect}" }
        list.empty? ? @name : "#{@name} with #{list.join(", ")}"
      end

      private

      def full_name(name)
        Entry === name ? "#{name.provider}:#{name.name}" : Names.split(name).join(":")
      end

      def fired_by?(event)
        !(event.names & @names).empty?
      end

      def matches?(values)
        @arguments.all? { |name, wanted| values.key?(name) && wanted === values[name] }
      end

      # Reject wrong names: they would make `refute_fired` succeed.
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
