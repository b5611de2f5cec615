# frozen_string_literal: true

module Tracepoint
  module Agent
    # The owner's consent: what processes of the same user may do without a proof.
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

        warn "tracepoint/agent: #{VARIABLE} must be one of #{LEVELS.join(", ")}, not #{given.inspect}"
      end

      def enough?(level, needed)
        LEVELS.index(level) >= LEVELS.index(needed)
      end

      # Return whether the uid is certainly our own.
      def same_user?(uid)
        uid == Process.euid && !unknown?(uid)
      end

      # Return whether the uid may stand for any user that our namespace cannot represent.
      def unknown?(uid)
        uid == NOBODY && File.readlines("/proc/self/uid_map").sum { |line| line.split.last.to_i } < ALL_USERS
      rescue SystemCallError
        uid == NOBODY
      end

      # Return whether the process is in our pid namespace. The kernel gives pid 0 for a
      # process outside; the status of one in a nested namespace has several pids.
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
