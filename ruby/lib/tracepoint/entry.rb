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
    # @!method enabled?
    #   @return [Boolean] whether someone traces it

    # @return [String] as in `shop:checkout(id: Integer, sku: String)`
    def to_s
      "#{provider.name}:#{name}(#{operands.map { |operand, type| "#{operand}: #{type || "nil"}" }.join(", ")})"
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
    #   return from a method around it, a thread killed).
    #   @yield the work to measure
    #   @return the block's value
    #   @raise [ArgumentError] wrong number of arguments, traced or not
  end
end
