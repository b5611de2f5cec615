# frozen_string_literal: true

module Tracepoint
  # Measures the time of pieces of Ruby code.
  # @api private
  module Loops
    UNROLLED = 10
    # Number of calls after which a JIT has compiled a loop.
    WARM = 100

    module_function

    # Measure in interleaved rounds. Each round starts with another piece of code, so that
    # no piece always follows the same one. Its own empty loop is subtracted, so both parts
    # of a figure were measured under the same conditions.
    #
    # @param cases [Hash{Object => String}] code by name; constants are resolved at top
    #   level
    # @param calls [Integer] calls per piece and round
    # @return [Hash{Object => Array<Float>}] ns per call, one figure per round
    def measure(cases, rounds:, calls:)
      loops = { nil => "", **cases }.transform_values { |code| compile(code) }
      WARM.times { loops.each_value { |it| it.call(1) } }
      taken = Hash.new { |hash, name| hash[name] = [] }
      rounds.times do |round|
        loops.to_a.rotate(round).each { |name, it| taken[name] << it.call(calls / UNROLLED) }
      end
      cases.keys.to_h { |name| [name, taken[name].zip(taken[nil]).map { |ns, empty| [(ns - empty).fdiv(calls), 0.001].max }] }
    end

    def median(numbers)
      sorted = numbers.sort
      (sorted[(sorted.size - 1) / 2] + sorted[sorted.size / 2]) / 2.0
    end

    def compile(code)
      eval(<<~RUBY, TOPLEVEL_BINDING, __FILE__, __LINE__ + 1)
        # frozen_string_literal: true
        lambda do |times|
          i = 0
          t = Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
          while i < times
            #{([code] * UNROLLED).join("\n")}
            i += 1
          end
          Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond) - t
        end
      RUBY
    end
  end
end
