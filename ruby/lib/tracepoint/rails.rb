# frozen_string_literal: true

require "rails/railtie"
require_relative "rack"
require_relative "notifications"

module Tracepoint
  # What a Rails application needs, in its Gemfile, and nothing else to do:
  #
  #   gem "tracepoint-usdt", require: "tracepoint/rails"
  #
  # Spans of requests ({Rack}) and of Rails' events ({Notifications}), and of jobs, if
  # Sidekiq is there ({Sidekiq}).
  class Railtie < ::Rails::Railtie
    initializer "tracepoint.middleware" do |app|
      app.middleware.unshift Tracepoint::Rack
      app.config.extend(Placement)
    end

    # The Gemfile may have it behind this gem.
    initializer("tracepoint.sidekiq") { require_relative "sidekiq" if defined?(::Sidekiq::Client) }

    # Moves the middleware behind Rails' own which gives a request its identity, and
    # before its log. An application may have replaced that one, or done without, or
    # have deleted ours, or placed it: so the stack is looked at when Rails has made it.
    module Placement
      def middleware=(stack)
        super
        case stack.middlewares.count(Tracepoint::Rack)
        when 1 then move(stack) if stack.include?(::ActionDispatch::RequestId)
        when 2 then stack.middlewares.delete_at(stack.middlewares.index(Tracepoint::Rack))
        end
      end

      private

      def move(stack)
        stack.delete(Tracepoint::Rack)
        stack.insert_after(::ActionDispatch::RequestId, Tracepoint::Rack)
      end
    end
    private_constant :Placement
  end
end
