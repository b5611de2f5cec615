# frozen_string_literal: true

module Tracepoint
  # Measures how long a request or a job waited before it began.
  # @api private
  module QueueTime
    # Seconds, milliseconds, or microseconds since 1970. The number of digits distinguishes
    # them until the year 2286. nginx writes `t=` before the number.
    TIME = /\A(?:t=)?([1-9](?:\d{9}|\d{12}|\d{15}))(?:\.(\d+))?\z/.freeze
    # Without the dot, all three are padded to nanoseconds, which have this many digits.
    DIGITS = 19
    private_constant :TIME, :DIGITS

    module_function

    # @param time [String, Numeric, nil] start of the wait, such as `1795617204.394`,
    #   `1795617204394`, or `t=1795617204394514`
    # @return [Integer, nil] nanoseconds until now; 0 if the clock that gave the time is
    #   ahead of the local one; nil if it is not a time
    def since(time)
      found = TIME.match(time.to_s)
      return unless found

      began = "#{found[1]}#{found[2]}".ljust(DIGITS, "0")[0, DIGITS].to_i
      [Process.clock_gettime(Process::CLOCK_REALTIME, :nanosecond) - began, 0].max
    end
  end
  private_constant :QueueTime
end
