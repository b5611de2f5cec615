# frozen_string_literal: true

require "tracepoint"
require_relative "queue_time"
require "rack/body_proxy"

module Tracepoint
  # Rack middleware: each request is a span `rack:request`. It begins before the
  # application is called, and ends when the response's body is closed.
  #
  #   require "tracepoint/rack"
  #   use Tracepoint::Rack
  #
  # Arguments at the beginning: `method`; `path`; `id`, the request ID (of Rails, else the
  # header X-Request-Id); and `queued_ns`, the time since a proxy wrote X-Request-Start.
  # Results: `route`, such as `items#show` (Rails) or `GET /items/:id` (Sinatra), and
  # `status`. A hijacked request ends when the application returns. So does a request that
  # was untraced when it began, because its body is not wrapped.
  class Rack
    REQUEST = Tracepoint.define_span(:request, { method: String, path: String, id: String, queued_ns: Integer },
                                     provider: :rack, result: { route: String, status: Integer })
    # @return [Integer] status that applications return after a hijack
    HIJACKED = -1
    private_constant :HIJACKED

    # @param app [#call] a Rack application
    def initialize(app)
      @app = app
    end

    # @param env [Hash] the Rack environment
    # @return [Array] the application's response; if traced, with a wrapped body
    def call(env)
      outcome = :thrown
      traced = REQUEST.enabled?
      span = REQUEST.start(env["REQUEST_METHOD"], path(env), env["action_dispatch.request_id"] || env["HTTP_X_REQUEST_ID"], queued_ns(env))
      status, headers, body = @app.call(env)
      outcome = :returned
      set_results(span, env, status) if REQUEST.enabled?
      if status == HIJACKED || !traced
        span.finish
      else
        body = ::Rack::BodyProxy.new(body) { span.finish }
      end
      [status, headers, body]
    rescue Exception # rubocop:disable Lint/RescueException -- raised again
      outcome = :raised
      raise
    ensure
      span&.finish(outcome) unless outcome == :returned
    end

    private

    def path(env)
      script = env["SCRIPT_NAME"]
      script.nil? || script.empty? ? env["PATH_INFO"] : "#{script}#{env["PATH_INFO"]}"
    rescue StandardError # incompatible encodings
      env["PATH_INFO"]
    end

    def queued_ns(env)
      QueueTime.since(env["HTTP_X_REQUEST_START"]) if REQUEST.enabled?
    rescue StandardError
      nil
    end

    # The response is ready: our errors must not block it.
    def set_results(span, env, status)
      span[:status] = status.to_i
      span[:route] = env["sinatra.route"] || rails_route(env["action_dispatch.request.path_parameters"])
    rescue StandardError
      nil
    end

    def rails_route(parameters)
      "#{parameters[:controller]}##{parameters[:action]}" if parameters&.key?(:controller)
    end
  end
end
