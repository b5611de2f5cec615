# frozen_string_literal: true

module Tracepoint
  # A way to trace methods: which arguments their spans have, and what they hold.
  #
  #   Tracepoint::Tracer::Stack.register(Shop::Till, :pay!)
  #
  # A subclass is a way of your own:
  #
  #   class Tenant < Tracepoint::Tracer
  #     def self.arguments(_names)
  #       {tenant: String}
  #     end
  #
  #     def self.values(receiver, _given)
  #       [receiver.tenant.name]
  #     end
  #   end
  #
  # A method has one tracer at a time, since it is one span.
  class Tracer
    # Tracers by number, for the wrappers' code.
    # @api private
    module Kinds
    end

    class << self
      # Trace methods of a class or a module ({Methods#trace}).
      # @param names [Array<Symbol>] none: as {Methods#trace_all}
      # @return [Symbol, Array<Symbol>] the names
      # @raise (see Methods#trace)
      def register(owner, *names)
        names.empty? ? Methods.trace_all(owner, by: self) : Methods.trace(owner, *names, by: self)
      end

      # Put the methods back ({Methods#untrace}).
      # @return (see Methods#untrace)
      # @raise (see Methods#untrace)
      def unregister(owner, *names)
        Methods.untrace(owner, *names)
      end

      # For a subclass to say: the span's arguments.
      # @param names [Array<Symbol>] of the method's parameters
      # @return [Hash{Symbol => Class, Symbol}] at most 10, as for
      #   {Tracepoint.define_span}
      def arguments(_names)
        {}
      end

      # For a subclass to say: the values of the arguments, in their order. Called
      # while someone traces, in the method, before its body. Where it raises, or
      # returns another number, all are nil, but with {Tracepoint.strict=} it raises.
      # @param receiver [Object] whose method it is
      # @param given [Hash{Symbol => Object}] the method's arguments; nil where a
      #   default counts
      # @return [Array]
      def values(_receiver, _given)
        []
      end

      # @api private
      def operands(parameters)
        arguments(parameters.names)
      end

      # @api private
      # @return [Array<String>] what the wrapper evaluates
      def sources(parameters)
        count = operands(parameters).size
        return [] if count.zero?

        names = parameters.names
        given = names.zip(parameters.reads(names)).map { |name, read| "#{name}: #{read}" }
        ["*::Tracepoint::Tracer::Kinds::#{constant}.collect(self, {#{given.join(", ")}}, #{count})"]
      end

      # @api private
      def collect(receiver, given, count)
        found = values(receiver, given)
        return found if found.size == count
        raise ArgumentError, "#{self} gives #{found.size} values for #{count} arguments" if Tracepoint.strict

        [nil] * count
      rescue StandardError
        raise if Tracepoint.strict

        [nil] * count
      end

      private

      def constant
        @constant ||= :"T#{Kinds.constants.size}".tap { |name| Kinds.const_set(name, self) }
      end
    end

    # Durations alone.
    class Latency < Tracer
    end

    # With the caller's stack, a line a frame, as the argument `stack`.
    class Stack < Tracer
      # values, collect, and the wrapper itself
      OWN_FRAMES = 3
      private_constant :OWN_FRAMES

      def self.arguments(_names)
        { stack: String }
      end

      def self.values(_receiver, _given)
        [caller(OWN_FRAMES).join("\n")]
      end
    end

    # With the method's arguments, the first ten, as text.
    class Arguments < Tracer
      def self.arguments(names)
        names.first(Operands::MAX - Operands::SPAN_OWN.size).to_h { |name| [name, String] }
      end

      def self.values(_receiver, given)
        given.each_value.first(Operands::MAX - Operands::SPAN_OWN.size).map { |value| text(value) }
      end

      def self.text(value)
        case value
        when nil, String, Symbol then value
        else value.inspect
        end
      end
      private_class_method :text
    end
  end

  # To be included in a class behind its methods, which are traced from then on.
  #
  #   class Till
  #     def pay; end
  #     include Tracepoint::Concerns::Latency
  #   end
  module Concerns
    { Latency: Tracer::Latency, Stack: Tracer::Stack, Arguments: Tracer::Arguments }.each do |name, tracer|
      const_set(name, Module.new do
        define_singleton_method(:included) do |base|
          super(base)
          tracer.register(base)
        end
      end)
    end
  end
end
