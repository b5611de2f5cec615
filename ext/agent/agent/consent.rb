# frozen_string_literal: true

module Tracepoint
  module Agent
    # The owner's consent: what processes of the same user may do without a proof:
    # docs/agent/access.md, "Consent".
    module Consent
      VARIABLE = "TRACEPOINT_AGENT"
      LEVELS = %w[observe trace eval].freeze
      ALL = LEVELS.last
      NOBODY = 65_534
      ALL_USERS = (1 << 32) - 1

      module_function

      # @return [String, nil]
      def level
        given = ENV[VARIABLE].to_s
        return if given.empty?
        return given if LEVELS.include?(given)

        warn "tracepoint/agent: #{VARIABLE} is none of #{LEVELS.join(", ")}: #{given.inspect}"
      end

      def enough?(level, needed)
        LEVELS.index(level) >= LEVELS.index(needed)
      end

      # Is this our own user, as far as we can tell?
      def same_user?(uid)
        uid == Process.euid && !unknown?(uid)
      end

      # Could the uid be that of any user for whom our namespace has no number?
      def unknown?(uid)
        uid == NOBODY && File.readlines("/proc/self/uid_map").sum { |line| line.split.last.to_i } < ALL_USERS
      rescue SystemCallError
        uid == NOBODY
      end

      # Is the process in our own pid namespace? The kernel gives one outside the pid 0; one
      # further inside has several in its status.
      def same_pid_namespace?(pid)
        pids("self") == [Process.pid] && pids(pid) == [pid]
      end

      def pids(process)
        File.read("/proc/#{process}/status")[/^NSpid:(.*)/, 1].to_s.split.map(&:to_i)
      rescue SystemCallError
        []
      end
    end
  end
end
