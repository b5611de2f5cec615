# frozen_string_literal: true

module Tracepoint
  # A way to trace methods: it defines the arguments of their spans, and the values.
  #
  #   Tracepoint::Tracer::Stack.register(Shop::Till, :pay!)
  #
  # Define your own as a subclass:
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
  # A method has one tracer at a time, because it is one span.
  class Tracer
    # Tracers by number, for the wrappers' code.
    # @api private
    module Kinds
    end

    class << self
      # Trace methods of a class or a module ({Methods#trace}).
      # @param owner [Module]
      # @param names [Array<Symbol>] none: like {Methods#trace_all}
      # @return [Symbol, Array<Symbol>] the names
      # @raise (see Methods#trace)
      def register(owner, *names)
        names.empty? ? Methods.trace_all(owner, by: self) : Methods.trace(owner, *names, by: self)
      end

      # Restore the methods ({Methods#untrace}).
      # @param owner [Module]
      # @param (see Methods#untrace)
      # @return (see Methods#untrace)
      # @raise (see Methods#untrace)
      def unregister(owner, *names)
        Methods.untrace(owner, *names)
      end

      # Return the arguments of the span. Subclasses override this.
      # @param names [Array<Symbol>] names of the method's parameters
      # @return [Hash{Symbol => Class, Symbol}] at most 10, as for
      #   {Tracepoint.define_span}
      def arguments(_names)
        {}
      end

      # Return the values of the arguments, in order. Subclasses override this. It is called
      # only while traced, in the method, before its body. If it raises or returns another
      # number, all values are nil; under {Tracepoint.strict=}, this raises.
      # @param receiver [Object] receiver of the call
      # @param given [Hash{Symbol => Object}] the method's arguments; nil if the call uses
      #   the default
      # @return [Array]
      def values(_receiver, _given)
        []
      end

      # @api private
      def operands(parameters)
        arguments(parameters.names)
      end

      # @api private
      # @return [Array<String>] expressions for the wrapper
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

    # Records durations only.
    class Latency < Tracer
    end

    # Adds the caller's stack, one frame per line, as the argument `stack`.
    class Stack < Tracer
      # Frames of values, collect, and the wrapper itself.
      OWN_FRAMES = 3
      private_constant :OWN_FRAMES

      def self.arguments(_names)
        { stack: String }
      end

      def self.values(_receiver, _given)
        [caller(OWN_FRAMES).join("\n")]
      end
    end

    # Adds the method's first ten arguments as strings.
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

  # Modules to include in a class after its methods, which are then traced.
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
