# frozen_string_literal: true

module Tracepoint
  module Agent
    # The hook's clock.
    module Clock
      # Trusted where the processor says that it ticks on, and the kernel (or the
      # hypervisor, through its page) uses it.
      def self.kind
        return 2 if Facts.arch == "aarch64"
        return 0 unless Facts.arch == "x86_64"

        flags = File.foreach("/proc/cpuinfo").find { |line| line.start_with?("flags") }.to_s.split
        source = File.read("/sys/devices/system/clocksource/clocksource0/current_clocksource").strip
        trusted = %w[tsc kvm-clock hyperv_clocksource_tsc_page xen].include?(source)
        trusted && (%w[constant_tsc nonstop_tsc] - flags).empty? ? 1 : 0
      rescue SystemCallError
        0
      end

      KIND = kind
      NAMES = %w[monotonic tsc cntvct].freeze
      START = Native.reason ? [0, 0].freeze : Native.clock(KIND).freeze

      # A pair of ticks and ns, some time at least after START.
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
