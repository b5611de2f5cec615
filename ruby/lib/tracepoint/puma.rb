# frozen_string_literal: true

require "tracepoint"
require "puma"

module Tracepoint
  # How busy Puma is: while someone traces `puma:stats`, each server fires it every
  # second, in the process that serves. In Puma's configuration:
  #
  #   plugin :tracepoint
  #
  # Arguments: `backlog`, the requests that wait for a thread; `busy`, the threads that
  # have one; `threads`, those that there are; and `max`, those that there may be.
  module Puma
    STATS = Tracepoint.define(:stats, { backlog: Integer, busy: Integer, threads: Integer, max: Integer }, provider: :puma)
    # @return [Integer] seconds
    INTERVAL = 1
    private_constant :INTERVAL

    # For Puma::Server, which runs behind all forks.
    # @api private
    module Sampled
      def run(*, **)
        @tracepoint_sampler = Puma.sampler(self) unless @tracepoint_sampler&.alive? || Puma.control?(self)
        super
      end
    end

    class << self
      # @api private
      # @param server [::Puma::Server]
      # @return [Thread, nil] nil: there is no room for one
      def sampler(server)
        Thread.new { sample(server) }.tap { |thread| thread.name = "tracepoint puma" } if Tracepoint.supported?
      rescue ThreadError
        nil
      end

      # @api private
      # @return [Boolean] whether it serves `pumactl`
      def control?(server)
        defined?(::Puma::App::Status) && ::Puma::App::Status === server.app
      end

      private

      # A server that was stopped may run again, with a thread of its own. It waits for a
      # condition that never comes, and does not sleep: reports of stacks leave out threads
      # that wait for work, and show those that sleep.
      def sample(server)
        lock = Mutex.new
        never = ConditionVariable.new
        loop do
          lock.synchronize { never.wait(lock, INTERVAL) }
          break if server.shutting_down? || server.thread&.alive? == false # as `halt` leaves it

          STATS.fire { arguments(server) }
        end
      end

      # One by one: newer Pumas begin their maxima again at each reading of `stats`. The
      # capacity is threads that wait, and those that Puma may yet start.
      def arguments(server)
        max = server.max_threads
        [server.backlog, max - server.pool_capacity, server.running, max]
      end
    end

    ::Puma::Server.prepend(Sampled)
  end
end
