# frozen_string_literal: true

require "tracepoint"
require_relative "argument_reader"
require_relative "queue_time"
require "sidekiq"

module Tracepoint
  # Jobs of Sidekiq as spans: `sidekiq:push` while jobs are written to Redis, and
  # `sidekiq:perform` while a job runs. Load this file in the processes that push jobs and
  # in Sidekiq's processes; no further setup is needed.
  #
  #   require "tracepoint/sidekiq"
  #
  # Arguments: `job`, the class (of ActiveJob, not its wrapper); `queue`; and `id`. A push
  # also has `count`, the number of jobs: `perform_bulk` is one push, with the ID of its
  # first job. `perform` also has `queued_ns`, the time in the queue, and `retries`, the
  # number of failures so far.
  module Sidekiq
    PUSH = Tracepoint.define_span(:push, { job: String, queue: String, id: String, count: Integer }, provider: :sidekiq)
    PERFORM = Tracepoint.define_span(:perform, { job: String, queue: String, id: String, queued_ns: Integer, retries: Integer },
                                     provider: :sidekiq)
    PUSHED = ArgumentReader.new(PUSH)
    PERFORMED = ArgumentReader.new(PERFORM)
    private_constant :PUSHED, :PERFORMED

    # Prepended to Sidekiq::Client. Client middleware runs before a job is written, so it
    # could not measure the write.
    # @api private
    module Push
      private

      def raw_push(payloads)
        arguments = PUSHED.read do
          job = payloads.first
          [Sidekiq.name_of(job), job["queue"], job["jid"], payloads.size]
        end
        PUSH.measure(*arguments) { super }
      end
    end

    # Server middleware.
    class Perform
      # @param job [Hash{String => Object}] the job as stored in the queue
      def call(_worker, job, queue)
        arguments = PERFORMED.read do
          [Sidekiq.name_of(job), queue, job["jid"], QueueTime.since(job["enqueued_at"]), retries(job["retry_count"])]
        end
        PERFORM.measure(*arguments) { yield }
      end

      private

      # Sidekiq starts to count at the second failure.
      def retries(count)
        count ? count + 1 : 0
      end
    end

    # @api private
    # @return [String] the name in Sidekiq's log
    def self.name_of(job)
      name = job["display_class"] || job["wrapped"] || job["class"]
      name.is_a?(Module) ? name.name : name
    end

    ::Sidekiq::Client.prepend(Push)
    # configure_server would have no effect if sidekiq/cli is loaded after this file. Only
    # Sidekiq's own processes use this chain.
    configuration = ::Sidekiq.respond_to?(:default_configuration) ? ::Sidekiq.default_configuration : ::Sidekiq
    configuration.server_middleware { |chain| chain.prepend Perform }
  end
end
