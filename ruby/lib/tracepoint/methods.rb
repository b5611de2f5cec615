# frozen_string_literal: true

require "monitor"
require_relative "methods/naming"
require_relative "methods/parameters"
require_relative "methods/wrapper"

module Tracepoint
  # Spans for methods: `extend` a class or a module with it, and say which.
  #
  #   class Shop::Till
  #     extend Tracepoint::Methods
  #
  #     trace def pay!(cents, currency: "EUR")
  #       …
  #     end, args: {cents: Integer}
  #   end
  #
  # That is the span `shop_till:pay_bang`, which tracers also know as
  # `Shop::Till#pay!`. The method is replaced where it stands, by one with the
  # same parameters, visibility, owner and place in its file.
  #
  # For a class that is not yours: `Tracepoint::Methods.trace(Net::HTTP, :request)`.
  module Methods
    # A span's name, taken by a method for good; its wrapper while it is traced.
    Claim = Struct.new(:number, :ruby_name, :span, :wrapper, :removed) do
      def same?(other)
        ruby_name ? ruby_name == other.ruby_name : wrapper.nil? || wrapper.of?(other.owner, [other.name])
      end

      # @return [Wrapper] the one that was removed
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
    # Their keys by method. A class that is loaded again must not be kept: ids are
    # never given twice.
    @keys = {}
    @serial = 0
    @installing = nil

    # Trace methods of this class: its own, or inherited ones, which then are
    # traced for this class only.
    # @param names [Array<Symbol>]
    # @param args [Hash{Symbol => Class, Symbol}] arguments of the methods that
    #   become arguments of the span, nil where a default counts
    # @param as [Symbol, String] the span's name, or `"provider:name"`
    # @return [Symbol, Array<Symbol>] the names, as `private` does
    # @raise [NameError] no such method
    # @raise [DefinitionError] the span's name is taken by something else, or
    #   cannot be made from the method's
    def trace(*names, args: {}, as: nil)
      Methods.trace(self, *names, args: args, as: as)
    end

    # Trace methods of the class itself: `trace_class_method def self.open`.
    # @return (see #trace)
    def trace_class_method(*names, args: {}, as: nil)
      Methods.trace(singleton_class, *names, args: args, as: as)
    end

    # Trace the public methods that this class has of its own by now, but for
    # those of `attr_reader` and its like.
    # @return [Array<Symbol>] their names
    def trace_all
      Methods.trace_all(self)
    end

    # Put the methods back. The spans stay, and have no more events.
    # @param names [Array<Symbol>] none: all of this class
    # @return [Array<Symbol>] those that were traced
    # @raise [NameError] no such method
    def untrace(*names)
      Methods.untrace(self, *names)
    end

    # @return (see #untrace)
    def untrace_class_method(*names)
      Methods.untrace(singleton_class, *names)
    end

    # Arguments of the method that become arguments of its span.
    Named = Struct.new(:operands_by_name) do
      def initialize(args)
        raise ArgumentError, "args: takes a Hash of arguments to types, {cents: Integer}, not #{args.inspect}" unless Hash === args

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
      # @param by [Class] a {Tracer}, instead of `args`
      # @see #trace
      def trace(owner, *names, args: {}, as: nil, by: Named.new(args))
        raise ArgumentError, "as: is the name of one span, not of #{names.size}" if as && names.size != 1

        @lock.synchronize { names.each { |name| wrap(owner, name.to_sym, by, as) } }
        names.size == 1 ? names.first : names
      end

      # @see #trace_all
      def trace_all(owner, by: Named.new({}))
        Array(trace(owner, *Lookup.traceable(owner), by: by))
      end

      # @see #untrace
      def untrace(owner, *names)
        @lock.synchronize do
          found = @claims.each_value.select { |it| it.wrapper&.of?(owner, names) }
          (names.map(&:to_sym) - found.map { |it| it.wrapper.name }).each { |name| owner.instance_method(name) }
          found.map { |it| it.release.name }
        end
      end

      # @return [Array<Span>] of the methods of this class that are traced
      def spans(owner)
        @lock.synchronize { @claims.each_value.select { |it| it.wrapper&.of?(owner, []) }.map(&:span) }
      end

      # @api private
      # @param ruby_name [String] of a method, `Shop::Till#pay!`
      # @return [Array<String>] its spans' names, `shop_till:pay_bang`; more than one if
      #   `as:` changed
      def named(ruby_name)
        @lock.synchronize { @claims.select { |_, it| it.ruby_name == ruby_name }.keys }
      end

      private

      # A method that is traced already stays as it is.
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

      # A method under two spans could not be put back.
      def traced?(claim, wrapper)
        key = @keys[[wrapper.owner.object_id, wrapper.name]]
        other = @claims[key]
        return false unless other&.wrapper&.of?(wrapper.owner, [wrapper.name]) && other.wrapper.current?
        return true if other.equal?(claim)

        raise DefinitionError, "#{wrapper.ruby_name || wrapper.name} is traced already, as #{key}: untrace it first"
      end

      # A hook of `method_added` may ask for what it is told of: a wrapper, or an
      # original under its other name.
      def ours?(owner, name)
        name.start_with?("__tracepoint_") || @installing&.of?(owner, [name])
      end

      # `trace def self.open` would find Kernel#open.
      def check_class_method(owner, name)
        return if Lookup.own?(owner, name) || !Lookup.own?(owner.singleton_class, name)

        raise ArgumentError, "#{name} is a class method of #{owner}: trace_class_method #{name.inspect}"
      end

      # A method that was defined again, as its file was loaded again, is the same by
      # its name in Ruby.
      def check_free(key, claim, wrapper)
        other = claim ? claim.ruby_name : Registry.find(key)
        return if claim ? claim.same?(wrapper) : other.nil?

        raise DefinitionError, "#{wrapper.ruby_name || wrapper.name} cannot be #{key}, which #{other || "another"} is: say another with as:"
      end

      # Where nobody traces, methods stay what they are.
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
