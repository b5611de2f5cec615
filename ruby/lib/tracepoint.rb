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

# Static tracepoints for Ruby programs: declared in the program, next to free
# until a tracer on the same machine looks at them.
#
#   CHECKOUT = Tracepoint.define(:checkout, {id: Integer, sku: String}, provider: :shop)
#   CHECKOUT.fire(42, "sku-1")          # nothing happens, until someone traces it
#   CHECKOUT.fire { [42, cart.sku] }    # the block runs only while someone does
#
#   Tracepoint.fire(:login, user.id)    # declares ruby_app:login by the first call
#   Tracepoint.span(:render, 42) { … }  # measures the block
#
# == How arguments become operands
#
# A probe's operands have one of five types. What is given is fitted to it:
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
#   :bool           | true, false            | 1, 0                             |
#                   | anything else          | nil                              | type
#
# ¹ The smallest is -2**63 + 1, as -2**63 stands for nil.
# ² Only the first 64 KiB are searched for it. A String whose bytes no NUL
#   follows (some extensions make such) is cut after 4095 bytes, and counted
#   if that was shorter.
#
# An event in which something was converted is counted once in
# <tt>Tracepoint.stats[:converted]</tt>. With <tt>Tracepoint.strict = true</tt>
# it raises instead, traced or not: RangeError, TypeError or ArgumentError
# (NUL). No method of the program is called to convert anything.
#
# == Without a definition
#
# The first fire or span of a name declares it from its arguments: an Integer,
# Float or Symbol has its own type, true and false have :bool, everything else
# has String. A nil leaves the type open until the first value. Keywords are
# arguments with names, in any order; if one of them cannot be a name, they are
# one argument, a Hash. A String or Symbol operand of such a probe takes any
# other value as <tt>"#{value}"</tt> does, which calls its to_s, while someone
# traces; if that raises, it takes nil, which counts as converted.
#
# Such a call raises only in strict mode. One with another number of arguments,
# or of which no probe can be made, is dropped and counted.
module Tracepoint
  class << self
    # @!method fire(name, *arguments)
    #   Fire the probe of that name, if someone traces it. A probe that was
    #   never defined is declared by its first fire, from its arguments.
    #   @param name [Symbol, String] `:checkout` of the default provider, or
    #     `"shop:checkout"`
    #   @yieldreturn [Array] the arguments; run only while someone traces the
    #     probe, which must be there
    #   @return [Boolean] whether it fired
    #   @raise [ArgumentError] of a defined probe: wrong number of arguments;
    #     a block, and no such probe; both traced or not

    # @!method span(name, *arguments)
    #   Measure the block as the span of that name, declared by its first use.
    #   @yield the work to measure
    #   @return the block's value

    # @!method enabled?(name)
    #   Does someone trace this probe, or one of this span's two?
    #   @return [Boolean] false too for a name that is not defined

    # @!method strict
    #   @return [Boolean] see {#strict=}

    # @!method strict=(on)
    #   For tests: arguments are checked, and blocks run, whether someone
    #   traces or not, and what does not fit raises.

    # @return [Boolean] whether probes exist at all here: Linux on x86-64 or
    #   aarch64, CRuby, and the extension built
    def supported?
      SUPPORTED
    end

    # All definitions, in order.
    # @return [Array<Probe, Span>]
    def probes
      Registry.entries
    end

    # @return [Integer] see {#undeclared_limit=}
    def undeclared_limit
      Registry.limit
    end

    # How many names may be fired or measured without a definition, 1,000 if
    # nothing is said. Names beyond them make no probes. Those that there are
    # stay.
    # @param limit [Integer] 0: none
    def undeclared_limit=(limit)
      unless limit.is_a?(Integer) && limit >= 0
        raise ArgumentError, "the limit must be an Integer of at least 0, not #{limit.inspect}"
      end

      Registry.limit = limit
    end

    # Counters since the program began:
    #
    # * +:converted+ events fired with a value that was converted
    # * +:dropped+ events not fired, as their block raised, or returned the
    #   wrong number of values; without a definition also: as the number of
    #   arguments was not that of the first time, or no probe can be made of
    #   the name or the arguments
    # * +:over_limit+ events and spans of names beyond {#undeclared_limit=}
    # * +:failed+ definitions that cannot be traced, as no image could be made
    #
    # and +:sites+, +:images+, +:bytes+: what the probes take.
    # @return [Hash{Symbol => Integer}]
    def stats
      Registry.counters.merge(Registry.figures)
    end

    private

    # Ruby's own TracePoint differs by one letter.
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
