# frozen_string_literal: true

require "tracepoint"
require "puma"

module Tracepoint
  # Reports how busy Puma is. While `puma:stats` is traced, each server fires it every
  # second, in the process that serves. In Puma's configuration:
  #
  #   plugin :tracepoint
  #
  # Arguments: `backlog`, the requests that wait for a thread; `busy`, the threads that
  # serve a request; `threads`, the current number of threads; and `max`, their limit.
  module Puma
    STATS = Tracepoint.define(:stats, { backlog: Integer, busy: Integer, threads: Integer, max: Integer }, provider: :puma)
    # @return [Integer] seconds
    INTERVAL = 1
    private_constant :INTERVAL

    # Prepended to Puma::Server, which runs after all forks.
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
      # @return [Thread, nil] nil: no thread can be started
      def sampler(server)
        Thread.new { sample(server) }.tap { |thread| thread.name = "tracepoint puma" } if Tracepoint.supported?
      rescue ThreadError
        nil
      end

      # @api private
      # @return [Boolean] whether the server only serves `pumactl`
      def control?(server)
        defined?(::Puma::App::Status) && ::Puma::App::Status === server.app
      end

      private

      # A stopped server may run again, with a new sampler. The thread waits for a condition
      # that is never signaled, instead of sleeping: reports of stacks omit threads that
      # wait for work, but show sleeping ones.
      def sample(server)
        lock = Mutex.new
        never = ConditionVariable.new
        loop do
          lock.synchronize { never.wait(lock, INTERVAL) }
          break if server.shutting_down? || server.thread&.alive? == false # after `halt`

          STATS.fire { arguments(server) }
        end
      end

      # Reads the values one by one: in newer Pumas, reading `stats` resets their maxima.
      # The capacity consists of waiting threads and threads that Puma may still start.
      def arguments(server)
        max = server.max_threads
        [server.backlog, max - server.pool_capacity, server.running, max]
      end
    end

    ::Puma::Server.prepend(Sampled)
  end
end
