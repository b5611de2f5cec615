# frozen_string_literal: true

require "tracepoint"
require_relative "argument_reader"
require_relative "sql_statement"
require "active_support"
require "active_support/notifications"

module Tracepoint
  # Events of ActiveSupport::Notifications as spans: `sql.active_record` is
  # `active_record:sql`. Loading this file subscribes to those of {EVENTS};
  # {subscribe} adds others, also a program's own:
  #
  #   require "tracepoint/notifications"
  #   Tracepoint::Notifications.subscribe("purchase.shop", {id: Integer}, result: {cents: Integer})
  module Notifications
    TEMPLATE = ->(payload) { [relative(payload[:identifier]), *payload[:count]] }
    CACHE_KEY = ->(payload) { [(payload[:key] if [String, Symbol].include?(payload[:key].class))] }
    JOB = ->(payload) { [payload[:job].class.name, payload[:job].queue_name, payload[:job].job_id] }
    private_constant :TEMPLATE, :CACHE_KEY, :JOB

    # By the event's name: the span's arguments, how they come from the payload
    # (by default those of their names do), and its results, which do.
    EVENTS = {
      "sql.active_record" => [
        { statement: String, name: String, cached: :bool },
        ->(payload) { [SqlStatement.normalize(payload[:sql]), payload[:name], payload[:cached] ? true : false] }
      ],
      "process_action.action_controller" => [{ controller: String, action: String, method: String }, nil, { status: Integer }],
      "render_template.action_view" => [{ template: String }, TEMPLATE],
      "render_layout.action_view" => [{ template: String }, TEMPLATE],
      "render_partial.action_view" => [{ template: String }, TEMPLATE],
      "render_collection.action_view" => [{ template: String, count: Integer }, TEMPLATE],
      "cache_read.active_support" => [{ key: String }, CACHE_KEY, { hit: :bool }],
      "cache_write.active_support" => [{ key: String }, CACHE_KEY],
      "cache_delete.active_support" => [{ key: String }, CACHE_KEY],
      "cache_generate.active_support" => [{ key: String }, CACHE_KEY],
      "enqueue.active_job" => [{ job: String, queue: String, id: String }, JOB],
      "enqueue_at.active_job" => [{ job: String, queue: String, id: String }, JOB],
      "perform.active_job" => [{ job: String, queue: String, id: String }, JOB],
      "process.action_mailer" => [{ mailer: String, action: String }],
      "deliver.action_mailer" => [{ mailer: String }]
    }.freeze

    @spans = {}
    @lock = Mutex.new

    class << self
      # Make an event's span, once; the first subscription stands. Its name is exact: of a pattern Rails would
      # build every event there is.
      #
      # @param event [String] as in `purchase.shop`, whose span is `shop:purchase`
      # @param arguments [Hash{Symbol => Class, Symbol}] what the payload has
      #   under these names when the event begins
      # @param result [Hash{Symbol => Class, Symbol}] what it has when it ends
      # @yieldparam payload [Hash]
      # @yieldreturn [Array] the arguments, where the payload has them otherwise;
      #   run only while someone traces the span, and all are nil if it raises or
      #   returns another number
      # @return [Span]
      # @raise [DefinitionError]
      def subscribe(event, arguments, result: {}, &read)
        provider, name = names(event)
        span = Tracepoint.define_span(name, arguments, provider: provider, result: result)
        @lock.synchronize do
          @spans[event] ||= span.tap { ActiveSupport::Notifications.subscribe(event, Subscriber.new(span, read)) }
        end
      end

      # The part of an event's name behind its last dot is the provider's, the
      # rest the span's; `?` becomes `_p`, `!` `_bang`, any other character `_`.
      # @return [Array(String, String)] provider and name
      def names(event)
        name, _, library = event.rpartition(".")
        [library, name].map { |part| part.gsub("?", "_p").gsub("!", "_bang").gsub(/[^A-Za-z0-9_]/, "_") }
      end

      private

      def relative(path)
        defined?(::Rails.root) && ::Rails.root ? path&.delete_prefix("#{::Rails.root}/") : path
      end
    end

    # Begins and ends a span as its event does. An event may nest in one of its
    # name, so each fiber has a stack of those that are open.
    class Subscriber
      def initialize(span, read)
        @span = span
        @names = span.operands.keys
        @results = span.results.keys
        @read = read || ->(payload) { payload.values_at(*@names) }
        @arguments = ArgumentReader.new(span)
        @open = :"tracepoint_#{span.provider.name}_#{span.name}"
      end

      def start(_event, _id, payload)
        arguments = @arguments.read { @read.call(payload) }
        (Thread.current[@open] ||= []) << @span.start(*arguments)
      end

      def finish(_event, _id, payload)
        span = Thread.current[@open]&.pop
        return unless span

        set_results(span, payload)
        span.finish(payload.is_a?(Hash) && payload.key?(:exception) ? :raised : :returned)
      end

      private

      # A program may announce an event with something else than a Hash.
      def set_results(span, payload)
        @results.each { |name| span[name] = payload[name] }
      rescue StandardError
        nil
      end
    end
    private_constant :Subscriber

    EVENTS.each { |event, (arguments, read, result)| subscribe(event, arguments, result: result || {}, &read) }
  end
end
