# frozen_string_literal: true

require "tracepoint"
require_relative "argument_reader"
require_relative "sql_statement"
require "active_support"
require "active_support/notifications"

module Tracepoint
  # Events of ActiveSupport::Notifications as spans: `sql.active_record` becomes
  # `active_record:sql`. Loading this file subscribes to all {EVENTS}. {subscribe} adds
  # others, including a program's own:
  #
  #   require "tracepoint/notifications"
  #   Tracepoint::Notifications.subscribe("purchase.shop", {id: Integer}, result: {cents: Integer})
  module Notifications
    TEMPLATE = ->(payload) { [relative(payload[:identifier]), *payload[:count]] }
    CACHE_KEY = ->(payload) { [(payload[:key] if [String, Symbol].include?(payload[:key].class))] }
    JOB = ->(payload) { [payload[:job].class.name, payload[:job].queue_name, payload[:job].job_id] }
    private_constant :TEMPLATE, :CACHE_KEY, :JOB

    # By event name: the span's arguments; how to get them from the payload (default: by
    # name); and the span's results, which are read by name.
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
      # Create an event's span. Only the first subscription to an event has an effect. The
      # event's name must be exact: for a pattern, Rails would build all its events.
      #
      # @param event [String] such as `purchase.shop`, whose span is `shop:purchase`
      # @param arguments [Hash{Symbol => Class, Symbol}] types of values that the payload
      #   contains under these names when the event begins
      # @param result [Hash{Symbol => Class, Symbol}] the same, when the event ends
      # @yieldparam payload [Hash]
      # @yieldreturn [Array] the arguments, if the payload has other names. The block runs
      #   only if the span is traced. If it raises or returns another number, all
      #   arguments are nil
      # @return [Span]
      # @raise [DefinitionError] as for {Tracepoint.define_span}
      def subscribe(event, arguments, result: {}, &read)
        provider, name = names(event)
        span = Tracepoint.define_span(name, arguments, provider: provider, result: result)
        @lock.synchronize do
          @spans[event] ||= span.tap { ActiveSupport::Notifications.subscribe(event, Subscriber.new(span, read)) }
        end
      end

      # Derive names from an event's name: the part after the last dot becomes the
      # provider, the rest the span. `?` becomes `_p`, `!` `_bang`, and other special
      # characters `_`.
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

    # Begins and ends a span with its event. Events of one name may nest, so each fiber has
    # a stack of open spans.
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

      # A program may publish an event with a payload that is not a Hash.
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
