# frozen_string_literal: true

module Tracepoint
  module Testing
    # Events of one probe, with some of their arguments.
    # @api private
    class Pattern
      # How many events a message lists.
      LISTED = 20
      private_constant :LISTED

      # @param name [Symbol, String, Probe, Span] as for {Tracepoint.fire}, or the Ruby
      #   name of a traced method, `"Shop::Till#pay!"`; a span's means its end
      # @param arguments [Hash{Symbol => #===}] also duration_ns, outcome and
      #   results of a span
      def initialize(name, arguments = {})
        @ruby = String === name && name.match?(/[#.]/)
        @name = @ruby ? name : full_name(name)
        @arguments = arguments
      end

      # The probe may be one that was defined since.
      # @param events [Array<Event>] all that were captured
      # @return [Array<Event>] those that match
      # @raise [ArgumentError] the probe has no such argument, or no such method is traced
      def select(events)
        @names = @ruby ? Methods.named(@name) : [@name]
        raise ArgumentError, "no method is traced that is called #{@name}" if @names.empty?

        check(Registry.find(@names.last))
        events.select { |event| fired_by?(event) && matches?(event.to_h) }
      end

      # @param events [Array<Event>] as for {#select}, which was called
      # @return [String] of a failed assertion's message: the probe's own events first
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
