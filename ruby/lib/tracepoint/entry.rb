# frozen_string_literal: true

module Tracepoint
  # The common part of {Probe} and {Span}.
  module Entry
    # @!method name
    #   @return [Symbol]
    # @!method provider
    #   @return [Provider]
    # @!method operands
    #   @return [Hash{Symbol => Class, Symbol, nil}] types by name, frozen;
    #     operands without names are called arg0, arg1 …; nil is the type of an
    #     operand that was not declared and was always nil so far
    # @!method results
    #   @return [Hash{Symbol => Class, Symbol}] of a span: the types of its
    #     results by name, frozen
    # @!method enabled?
    #   @return [Boolean] whether someone traces it

    # @return [String] as in `shop:checkout(id: Integer, sku: String)`; with
    #   results `shop:checkout(id: Integer) -> (status: Integer)`
    def to_s
      "#{provider.name}:#{name}#{Operands.signature(operands, results)}"
    end

    # @return [String]
    def inspect
      "#<#{self.class} #{self}>"
    end

    # One probe is one object, in every Ractor.
    def dup
      self
    end

    def clone(**)
      self
    end
  end

  # An event. Made by {Tracepoint.define}.
  class Probe
    include Entry

    # @!method fire(*arguments)
    #   Fire it, if someone traces it.
    #   @yieldreturn [Array] the arguments, run only while someone traces it and
    #     only if none are given; for one operand the value alone will do, and
    #     for none any value. A block that raises an error (StandardError,
    #     ScriptError, SystemStackError) or returns the wrong number costs the
    #     event (`Tracepoint.stats[:dropped]`), not the program.
    #   @return [Boolean] whether it fired
    #   @raise [ArgumentError] wrong number of arguments, traced or not
  end

  # A stretch of work, with a beginning and an end. Made by
  # {Tracepoint.define_span}.
  class Span
    include Entry

    # @!method measure(*arguments)
    #   Run the block between the span's two probes. However it ends, so does
    #   the span: with outcome 0 (returned), 1 (raised), or 2 (throw, break,
    #   return from a method around it, a thread killed). One that began while
    #   nobody traced either probe has an end, without duration, if it returns.
    #   @yield [span] the work to measure
    #   @yieldparam span [Measurement] of a span with results
    #   @return the block's value
    #   @raise [ArgumentError] wrong number of arguments, traced or not

    # @!method start(*arguments)
    #   Begin the span; {Measurement#finish} ends it, in whatever method,
    #   thread or Ractor. One that is never finished has no end. Begun while nobody traces
    #   either probe, it ends without duration, arguments and results.
    #
    #     span = REQUEST.start("GET")
    #     span[:status] = 200
    #     span.finish
    #
    #   @return [Measurement]
    #   @raise [ArgumentError] wrong number of arguments, or a span that was not
    #     defined; traced or not
  end

  # A span that has begun. While nobody traces, all calls of a span share one,
  # which ignores what it is given.
  class Measurement
    # @!method []=(result, value)
    #   Set a result. The last value counts, a String as it is when it is given;
    #   afterwards it is ignored.
    #   @param result [Symbol]
    #   @raise [ArgumentError] no such result, traced or not

    # @!method finish(outcome = :returned)
    #   End the span, unless it has ended.
    #   @param outcome [Symbol] `:returned`, `:raised` or `:thrown`
    #   @return [nil]
    #   @raise [ArgumentError] another outcome, traced or not
  end
end
