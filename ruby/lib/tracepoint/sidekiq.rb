# frozen_string_literal: true

require_relative "../tracepoint"
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
    PERFORM = Tracepoint.define_span(:perform, { job: String, queue: String, id: String, queued_ns: Integer, retries: Integer },
                                     provider: :sidekiq)

    # Server middleware.
    class Perform
      ARGUMENTS = ArgumentReader.new(PERFORM)
      private_constant :ARGUMENTS

      # @param job [Hash{String => Object}] as it stood in the queue
      def call(_worker, job, queue)
        arguments = ARGUMENTS.read do
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

    # Client middleware is called before Sidekiq writes a job, and so could not measure that.
    class Push < Tracer
      def self.arguments(_names)
        { job: String, queue: String, id: String, count: Integer }
      end

      def self.values(_client, given)
        job, = jobs = given.fetch(:payloads)
        [Sidekiq.name_of(job), job["queue"], job["jid"], jobs.size]
      end
    end

    # @param job [Hash{String => Object}]
    # @return [String, Class] what Sidekiq's log calls it
    def self.name_of(job)
      name = job["display_class"] || job["wrapped"] || job["class"]
      name.is_a?(Module) ? name.name : name
    end

    Methods.trace(::Sidekiq::Client, :raw_push, as: "sidekiq:push", by: Push)
    ::Sidekiq.configure_server { |config| config.server_middleware { |chain| chain.prepend Perform } }
  end
end
