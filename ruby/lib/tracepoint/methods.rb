# frozen_string_literal: true

require "monitor"
require_relative "methods/naming"
require_relative "methods/parameters"
require_relative "methods/wrapper"

module Tracepoint
  # Spans for methods: `extend` a class or a module with it, and name the methods.
  #
  #   class Shop::Till
  #     extend Tracepoint::Methods
  #
  #     trace def pay!(cents, currency: "EUR")
  #       …
  #     end, args: {cents: Integer}
  #   end
  #
  # This defines the span `shop_till:pay_bang`, which tracers also know as
  # `Shop::Till#pay!`. A wrapper replaces the method in place. It has the same
  # parameters, visibility, owner, and source location.
  #
  # For a class of another library: `Tracepoint::Methods.trace(Net::HTTP, :request)`.
  module Methods
    # A span's name, which a method keeps forever; its wrapper while it is traced.
    Claim = Struct.new(:number, :ruby_name, :span, :wrapper, :removed) do
      def same?(other)
        ruby_name ? ruby_name == other.ruby_name : wrapper.nil? || wrapper.of?(other.owner, [other.name])
      end

      # @return [Wrapper] the removed wrapper
      def release
        wrapper.tap(&:remove)
      ensure
        self.removed = wrapper
        self.wrapper = nil
      end
    end
    private_constant :Claim

    @lock = Monitor.new
    @claims = {}
    # Keys of the claims by method. They must not keep reloaded classes alive, so they use
    # object ids, which are never reused.
    @keys = {}
    @serial = 0
    @installing = nil

    # Trace methods of this class: its own methods, or inherited ones, which are then
    # traced for this class only.
    # @param names [Array<Symbol>]
    # @param args [Hash{Symbol => Class, Symbol}] arguments of the methods that become
    #   arguments of the span; nil if the call uses the default
    # @param as [Symbol, String] the span's name, or `"provider:name"`
    # @return [Symbol, Array<Symbol>] the names, like `private`
    # @raise [NameError] unknown method
    # @raise [ArgumentError] unknown argument, several methods with `as`, or a class method
    # @raise [DefinitionError] the span's name is taken, or cannot be derived from the
    #   method's name
    def trace(*names, args: {}, as: nil)
      Methods.trace(self, *names, args: args, as: as)
    end

    # Trace methods of the class itself: `trace_class_method def self.open`.
    # @param (see #trace)
    # @return (see #trace)
    # @raise (see #trace)
    def trace_class_method(*names, args: {}, as: nil)
      Methods.trace(singleton_class, *names, args: args, as: as)
    end

    # Trace the public methods that this class has defined so far, except methods
    # of `attr_reader` and the like.
    # @return [Array<Symbol>] their names
    # @raise (see #trace)
    def trace_all
      Methods.trace_all(self)
    end

    # Restore the methods. The spans stay, and have no more events.
    # @param names [Array<Symbol>] none: all methods of this class
    # @return [Array<Symbol>] the methods that were traced
    # @raise [NameError] unknown method
    def untrace(*names)
      Methods.untrace(self, *names)
    end

    # Restore methods of the class itself.
    # @param (see #untrace)
    # @return (see #untrace)
    # @raise (see #untrace)
    def untrace_class_method(*names)
      Methods.untrace(singleton_class, *names)
    end

    # Arguments of a method that become arguments of its span.
    Named = Struct.new(:operands_by_name) do
      def initialize(args)
        unless Hash === args
          raise ArgumentError, "args: must be a Hash of argument names to types, such as {cents: Integer}, not #{args.inspect}"
        end

        super
      end

      def operands(_parameters)
        operands_by_name
      end

      def sources(parameters)
        parameters.reads(operands_by_name.keys.map(&:to_sym))
      end
    end
    private_constant :Named

    class << self
      # Trace methods of any class or module.
      # @param owner [Module]
      # @param by [Class] a {Tracer}, instead of `args`
      # @see #trace
      def trace(owner, *names, args: {}, as: nil, by: Named.new(args))
        raise ArgumentError, "as: names one span, and #{names.size} methods are given" if as && names.size != 1

        @lock.synchronize { names.each { |name| wrap(owner, name.to_sym, by, as) } }
        names.size == 1 ? names.first : names
      end

      # @param owner [Module]
      # @param by [Class] a {Tracer}
      # @see #trace_all
      def trace_all(owner, by: Named.new({}))
        Array(trace(owner, *Lookup.traceable(owner), by: by))
      end

      # @param owner [Module]
      # @see #untrace
      def untrace(owner, *names)
        @lock.synchronize do
          found = @claims.each_value.select { |it| it.wrapper&.of?(owner, names) }
          (names.map(&:to_sym) - found.map { |it| it.wrapper.name }).each { |name| owner.instance_method(name) }
          found.map { |it| it.release.name }
        end
      end

      # @param owner [Module]
      # @return [Array<Span>] the spans of this class's traced methods
      def spans(owner)
        @lock.synchronize { @claims.each_value.select { |it| it.wrapper&.of?(owner, []) }.map(&:span) }
      end

      # @api private
      # @param ruby_name [String] name of a method, such as `Shop::Till#pay!`
      # @return [Array<String>] names of its spans, such as `shop_till:pay_bang`; several
      #   if `as:` changed
      def named(ruby_name)
        @lock.synchronize { @claims.select { |_, it| it.ruby_name == ruby_name }.keys }
      end

      private

      # A method that is already traced stays unchanged.
      def wrap(owner, name, tracer, as)
        return if ours?(owner, name)

        check_class_method(owner, name)
        wrapper = Wrapper.new(owner, name, Naming.ruby_name(owner, name))
        key = Naming.split(owner, name, as)
        claim = @claims[key.join(":")]
        check_free(key.join(":"), claim, wrapper)
        sources = tracer.sources(wrapper.parameters)
        span = Definition.span(key.last, Operands.declared(tracer.operands(wrapper.parameters), {}), key.first, wrapper.ruby_name)
        return if traced?(claim, wrapper)

        @keys[[owner.object_id, name]] = key.join(":")
        install(wrapper, claim || publish(span, key.join(":"), wrapper.ruby_name), sources)
      end

      # A method with two wrappers could not be restored.
      def traced?(claim, wrapper)
        key = @keys[[wrapper.owner.object_id, wrapper.name]]
        other = @claims[key]
        return false unless other&.wrapper&.of?(wrapper.owner, [wrapper.name]) && other.wrapper.current?
        return true if other.equal?(claim)

        raise DefinitionError, "#{wrapper.ruby_name || wrapper.name} is already traced as #{key}: untrace it first"
      end

      # A `method_added` hook may ask to trace the method that it reports, which may be a
      # wrapper, or an original under its hidden name.
      def ours?(owner, name)
        name.start_with?("__tracepoint_") || @installing&.of?(owner, [name])
      end

      # `trace def self.open` would find Kernel#open.
      def check_class_method(owner, name)
        return if Lookup.own?(owner, name) || !Lookup.own?(owner.singleton_class, name)

        raise ArgumentError, "#{name} is a class method of #{owner}: trace_class_method #{name.inspect}"
      end

      # A method that was redefined because its file was reloaded counts as the same
      # method if its Ruby name is the same.
      def check_free(key, claim, wrapper)
        other = claim ? claim.ruby_name : Registry.find(key)
        return if claim ? claim.same?(wrapper) : other.nil?

        raise DefinitionError, "#{wrapper.ruby_name || wrapper.name} cannot be #{key}: " \
                               "#{other || "another method"} has that name; choose another with as:"
      end

      # Without probes, methods stay unchanged.
      def wraps?
        Tracepoint.supported?
      end

      def install(wrapper, claim, values)
        @installing = claim.wrapper = wrapper
        return unless wraps?

        hidden = claim.removed&.hidden_as(wrapper) || :"__tracepoint_#{@serial += 1}"
        wrapper.install(claim.number, hidden, values)
        installed = true
      ensure
        begin
          claim.release unless installed || !wraps? # a hook of `method_added` raised
        ensure
          @installing = nil
        end
      end

      # @return [Claim]
      def publish(span, key, ruby_name)
        claim = @claims[key] = Claim.new(@claims.size, ruby_name, span)
        return claim unless wraps?

        Spans.const_set(:"S#{claim.number}", span)
        Registry.watch(span, "__tracepoint_#{claim.number}", false)
        Registry.watch(span, "__tracepoint_b#{claim.number}", true)
        claim
      end
    end
  end
end
