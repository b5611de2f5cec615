# frozen_string_literal: true

module Tracepoint
  # Methods shared by {Probe} and {Span}.
  module Entry
    # @!method name
    #   @return [Symbol] the name, without the provider
    # @!method provider
    #   @return [Provider]
    # @!method operands
    #   @return [Hash{Symbol => Class, Symbol, nil}] types by name, frozen. Operands
    #     without names are called arg0, arg1 …; the type nil belongs to an undeclared
    #     operand that has only been nil so far
    # @!method results
    #   @return [Hash{Symbol => Class, Symbol}] types of a span's results by name,
    #     frozen; empty for a probe
    # @!method enabled?
    #   @return [Boolean] whether it is traced

    # @return [String] such as `shop:checkout(id: Integer, sku: String)`; with
    #   results, `shop:checkout(id: Integer) -> (status: Integer)`
    def to_s
      "#{provider.name}:#{name}#{Operands.signature(operands, results)}"
    end

    # @return [String]
    def inspect
      "#<#{self.class} #{self}>"
    end

    # Return self: a probe is one object in every Ractor.
    def dup
      self
    end

    def clone(**)
      self
    end
  end

  # An event. {Tracepoint.define} creates it.
  class Probe
    include Entry

    # @!method fire(*arguments)
    #   Fire the probe, if it is traced.
    #   @param arguments [Array<Object>] one per operand
    #   @yieldreturn [Array] the arguments. The block runs only if the probe is traced
    #     and no arguments are given. A single value may be returned without an Array;
    #     a probe without operands ignores the value. If the block raises
    #     (StandardError, ScriptError, SystemStackError) or returns the wrong number,
    #     the event is dropped (`Tracepoint.stats[:dropped]`), and the program continues.
    #   @return [Boolean] whether it fired
    #   @raise [ArgumentError] wrong number of arguments, traced or not
  end

  # A piece of work with a beginning and an end. {Tracepoint.define_span} creates it.
  class Span
    include Entry

    # @!method measure(*arguments)
    #   Run the block between the span's two probes. The span ends however the block
    #   ends: with outcome 0 (returned), 1 (raised), or 2 (throw, break, return from an
    #   enclosing method, a killed thread). If the span was untraced when it began, its
    #   end has no duration, and fires only if the block returns.
    #   @param arguments [Array<Object>] one per operand
    #   @yield [span] the work to measure
    #   @yieldparam span [Measurement] for a span with results
    #   @return the block's value
    #   @raise [ArgumentError] wrong number of arguments, traced or not
    #   @raise [LocalJumpError] no block given

    # @!method start(*arguments)
    #   Begin the span. {Measurement#finish} ends it, in any method, thread, or Ractor. A
    #   span that is never finished has no end. If it was untraced when it began, it ends
    #   without duration, arguments, and results.
    #
    #     span = REQUEST.start("GET")
    #     span[:status] = 200
    #     span.finish
    #
    #   @param arguments [Array<Object>] one per operand
    #   @return [Measurement]
    #   @raise [ArgumentError] wrong number of arguments, or an undefined span; traced
    #     or not
  end

  # A span that has begun. All untraced calls of a span share one measurement, which
  # ignores its results.
  class Measurement
    # @!method []=(result, value)
    #   Set a result. The last value counts; a String is copied when it is set. After the
    #   end, values are ignored.
    #   @param result [Symbol] name of the result
    #   @param value [Object]
    #   @raise [ArgumentError] unknown result, traced or not

    # @!method finish(outcome = :returned)
    #   End the span, unless it has already ended.
    #   @param outcome [Symbol] `:returned`, `:raised` or `:thrown`
    #   @return [nil]
    #   @raise [ArgumentError] unknown outcome, traced or not
  end
end
