# frozen_string_literal: true

module Tracepoint
  # How long a request or a job waited before it began.
  # @api private
  module QueueTime
    # Seconds, milliseconds or microseconds since 1970, told apart by their digits until
    # the year 2286; nginx writes `t=` before them.
    TIME = /\A(?:t=)?([1-9](?:\d{9}|\d{12}|\d{15}))(?:\.(\d+))?\z/.freeze
    # Without their dot they are alike: these are those of nanoseconds.
    DIGITS = 19
    private_constant :TIME, :DIGITS

    module_function

    # @param time [String, Numeric, nil] when the wait began, as in `1795617204.394`,
    #   `1795617204394` or `t=1795617204394514`
    # @return [Integer, nil] nanoseconds until now; 0 where the clock that gave the time
    #   is ahead of ours, nil if it is no time
    def since(time)
      found = TIME.match(time.to_s)
      return unless found

      began = "#{found[1]}#{found[2]}".ljust(DIGITS, "0")[0, DIGITS].to_i
      [Process.clock_gettime(Process::CLOCK_REALTIME, :nanosecond) - began, 0].max
    end
  end
  private_constant :QueueTime
end
