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
      app.config.extend(Placement)
    end

    # The Gemfile may have it behind this gem.
    initializer("tracepoint.sidekiq") { require_relative "sidekiq" if defined?(::Sidekiq::Client) }

    # Puts the middleware behind Rails' own which gives a request its identity, and
    # before its log. An application may have replaced that one, or done without: so
    # the stack is looked at when Rails has made it.
    module Placement
      def middleware=(stack)
        super
        return if stack.include?(Tracepoint::Rack)

        if stack.include?(::ActionDispatch::RequestId)
          stack.insert_after(::ActionDispatch::RequestId, Tracepoint::Rack)
        else
          stack.unshift(Tracepoint::Rack)
        end
      end
    end
    private_constant :Placement
  end
end
