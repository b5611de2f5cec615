# frozen_string_literal: true

require "tracepoint"
require_relative "argument_reader"
require_relative "queue_time"
require "sidekiq"

module Tracepoint
  # Jobs of Sidekiq as spans: `sidekiq:push` while they are written to Redis, and
  # `sidekiq:perform` while they run. Loading this file is all there is to do, in the
  # processes that push and in Sidekiq's.
  #
  #   require "tracepoint/sidekiq"
  #
  # Arguments: `job`, the class (that of ActiveJob, not its wrapper), `queue` and `id`; of
  # a push also `count`, the number of jobs: those of `perform_bulk` are one push, whose
  # id is that of the first. Of `perform` also `queued_ns`, how long the job waited in its
  # queue, and `retries`, how often it has failed so far.
  module Sidekiq
    PUSH = Tracepoint.define_span(:push, { job: String, queue: String, id: String, count: Integer }, provider: :sidekiq)
    PERFORM = Tracepoint.define_span(:perform, { job: String, queue: String, id: String, queued_ns: Integer, retries: Integer },
                                     provider: :sidekiq)
    PUSHED = ArgumentReader.new(PUSH)
    PERFORMED = ArgumentReader.new(PERFORM)
    private_constant :PUSHED, :PERFORMED

    # For Sidekiq::Client: its middleware is called before it writes a job, and so could
    # not measure that.
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
      # @param job [Hash{String => Object}] as it stood in the queue
      def call(_worker, job, queue)
        arguments = PERFORMED.read do
          [Sidekiq.name_of(job), queue, job["jid"], QueueTime.since(job["enqueued_at"]), retries(job["retry_count"])]
        end
        PERFORM.measure(*arguments) { yield }
      end

      private

      # Sidekiq counts from the second failure on.
      def retries(count)
        count ? count + 1 : 0
      end
    end

    # @api private
    # @return [String] what Sidekiq's log calls it
    def self.name_of(job)
      name = job["display_class"] || job["wrapped"] || job["class"]
      name.is_a?(Module) ? name.name : name
    end

    ::Sidekiq::Client.prepend(Push)
    # Not with configure_server: it does nothing where sidekiq/cli is loaded after this.
    # Only Sidekiq's own processes call what is in this chain.
    configuration = ::Sidekiq.respond_to?(:default_configuration) ? ::Sidekiq.default_configuration : ::Sidekiq
    configuration.server_middleware { |chain| chain.prepend Perform }
  end
end
