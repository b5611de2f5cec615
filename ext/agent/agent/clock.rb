# frozen_string_literal: true

module Tracepoint
  module Agent
    # The hook's clock.
    module Clock
      KIND = Native.reason ? 0 : Native.best_clock
      NAMES = %w[monotonic tsc cntvct].freeze
      START = Native.reason ? [0, 0].freeze : Native.clock(KIND).freeze

      # Return a pair of ticks and ns, read at least `at_least_ns` after START.
      def self.now(at_least_ns = 0)
        ticks, ns = Native.clock(KIND)
        return [ticks, ns] if ns - START[1] >= at_least_ns

        sleep((at_least_ns - (ns - START[1])) / 1e9)
        now(at_least_ns)
      end

      def self.pair
        %i[ticks ns].zip(Native.clock(KIND)).to_h
      end

      def self.mult(ticks, nanoseconds)
        return 1 << 32 if KIND.zero?

        ((nanoseconds - START[1]) << 32) / (ticks - START[0])
      end
    end
  end
end
