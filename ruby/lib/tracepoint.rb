# frozen_string_literal: true

require_relative "tracepoint/version"
require_relative "tracepoint/errors"
require_relative "tracepoint/names"
require_relative "tracepoint/operands"
require_relative "tracepoint/implementation"
require_relative "tracepoint/configuration"
require_relative "tracepoint/entry"
require_relative "tracepoint/provider"
require_relative "tracepoint/definition"
require_relative "tracepoint/methods"
require_relative "tracepoint/tracer"
require_relative "tracepoint/benchmark"

# Static tracepoints for Ruby programs: defined in the program, and almost free
# until a tracer on the same machine attaches.
#
#   CHECKOUT = Tracepoint.define(:checkout, {id: Integer, sku: String}, provider: :shop)
#   CHECKOUT.fire(42, "sku-1")          # does nothing unless traced
#   CHECKOUT.fire { [42, cart.sku] }    # runs the block only if traced
#
#   Tracepoint.fire(:login, user.id)    # the first call declares ruby_app:login
#   Tracepoint.span(:render, 42) { … }  # measures the block
#
# == How arguments become operands
#
# An operand has one of five types. Values are converted to that type:
#
#   type            | given                  | becomes                          | counted
#   ----------------+------------------------+----------------------------------+--------
#   any             | nil                    | nil                              |
#   Integer         | Integer                | itself                           |
#                   | Integer beyond 64 bits | the nearest that fits ¹          | range
#                   | Float                  | truncated, to the nearest ¹      | type
#                   | Float::NAN             | nil                              | type
#                   | true, false            | 1, 0                             | type
#                   | anything else          | nil                              | type
#   Float           | Float                  | itself                           |
#                   | Integer                | to_f                             |
#                   | … beyond ±2**53        | to_f, beyond Float ±Infinity     | range
#                   | anything else          | nil                              | type
#   String, Symbol  | String, Symbol         | its bytes                        |
#                   | … with a NUL           | the bytes before the NUL ²       | NUL
#                   | anything else          | nil                              | type
#   :bool           | true, false            | 1, 0                             | type
#                   | anything else          | nil                              | type
#
# ¹ The smallest is -2**63 + 1, because -2**63 stands for nil.
# ² Only the first 64 KiB are searched for a NUL. Some extensions create Strings
#   without a NUL after their bytes. These are cut after 4095 bytes, and counted
#   if the cut removed anything.
#
# An event with converted values is counted once in
# <tt>Tracepoint.stats[:converted]</tt>. With <tt>Tracepoint.strict = true</tt>
# it raises instead, traced or not: RangeError, TypeError, or ArgumentError
# (NUL). The conversion never calls a method of the program.
#
# == Without a definition
#
# The first fire or span with a name declares it from its arguments. Integers,
# Floats, and Symbols have their own type, true and false have :bool, and all
# other values have String. A nil leaves the type open until the first value.
# Keywords are arguments with names, in any order. If a keyword is not a valid
# name, all keywords become one argument, a Hash. While such a probe is traced,
# its String and Symbol operands convert other values with <tt>"#{value}"</tt>,
# which calls to_s. If that raises, the operand is nil, and the event counts as
# converted.
#
# Such calls raise only in strict mode. Calls with another number of arguments,
# or with a name or arguments that cannot make a probe, are dropped and counted.
module Tracepoint
  class << self
    # @!method fire(name, *arguments)
    #   Fire the probe with this name, if it is traced. The first fire of an
    #   undefined probe declares it from its arguments.
    #   @param name [Symbol, String] `:checkout` of the default provider, or
    #     `"shop:checkout"`
    #   @param arguments [Array<Object>] one per operand
    #   @yieldreturn [Array] the arguments; the block runs only if the probe is
    #     traced, and requires a defined probe
    #   @return [Boolean] whether it fired
    #   @raise [ArgumentError] the number of arguments is wrong for a defined
    #     probe; or a block is given, and no such probe is defined. Both raise
    #     whether traced or not

    # @!method span(name, *arguments)
    #   Measure the block as the span with this name. The first use of an
    #   undefined span declares it from its arguments.
    #   @param name [Symbol, String] as for {#fire}
    #   @param arguments [Array<Object>] one per operand
    #   @yield the work to measure
    #   @return the block's value
    #   @raise [ArgumentError] the number of arguments is wrong for a defined span
    #   @raise [LocalJumpError] no block given

    # @!method enabled?(name)
    #   Return whether this probe, or one of this span's two probes, is traced.
    #   @param name [Symbol, String] as for {#fire}
    #   @return [Boolean] false also for an undefined name

    # @!method strict
    #   @return [Boolean] whether strict mode is on: see {#strict=}

    # @!method strict=(on)
    #   Turn strict mode on or off, for tests. In strict mode, arguments are
    #   checked and blocks run whether traced or not, and unsuitable values raise.
    #   @param on [Boolean]
    #   traces or not, and what does not fit raises.

    # @return [Boolean] whether this platform supports probes: Linux on x86-64 or
    #   aarch64, CRuby, and the built extension
    def supported?
      SUPPORTED
    end

    # Return all probes and spans, in the order of their definition.
    # @return [Array<Probe, Span>]
    def probes
      Registry.entries
    end

    # @return [Integer] see {#undeclared_limit=}
    def undeclared_limit
      Registry.limit
    end

    # Limit the number of names that may be fired or measured without a definition.
    # The default is 1,000. Further names create no probes. Existing probes stay.
    # @param limit [Integer] 0: none
    # @raise [ArgumentError] not an Integer, or negative
    def undeclared_limit=(limit)
      unless limit.is_a?(Integer) && limit >= 0
        raise ArgumentError, "the limit must be an Integer of at least 0, not #{limit.inspect}"
      end

      Registry.limit = limit
    end

    # Return counters since the program started:
    #
    # * +:converted+ events fired with a converted value
    # * +:dropped+ events not fired because their block raised or returned the
    #   wrong number of values. For undefined probes, also: events whose number of
    #   arguments differs from the first one's, and events whose name or arguments
    #   cannot make a probe
    # * +:over_limit+ events and spans with names beyond {#undeclared_limit=}
    # * +:failed+ definitions that cannot be traced because their image could not be
    #   created
    #
    # and +:sites+, +:images+, +:bytes+: the resources that probes use.
    # @return [Hash{Symbol => Integer}]
    def stats
      Registry.counters.merge(Registry.figures)
    end

    private

    # Hint at TracePoint, Ruby's own class, whose name differs by one letter.
    def method_missing(name, *)
      return super unless TracePoint.respond_to?(name)

      message = "Tracepoint (USDT probes) has no method '#{name}': Ruby's own class is TracePoint"
      raise NoMethodError.new(message, name, receiver: self)
    end

    def respond_to_missing?(*)
      false
    end
  end
end
