# frozen_string_literal: true

require "rails/railtie"
require_relative "rack"
require_relative "notifications"

module Tracepoint
  # Everything a Rails application needs. Add this to its Gemfile:
  #
  #   gem "tracepoint-usdt", require: "tracepoint/rails"
  #
  # It provides spans of requests ({Rack}), of Rails' events ({Notifications}), and, if
  # Sidekiq is loaded, of jobs ({Sidekiq}).
  class Railtie < ::Rails::Railtie
    initializer "tracepoint.middleware" do |app|
      app.middleware.unshift Tracepoint::Rack
      app.config.extend(Placement)
    end

    # Sidekiq may come after this gem in the Gemfile.
    initializer("tracepoint.sidekiq") { require_relative "sidekiq" if defined?(::Sidekiq::Client) }

    # Moves the middleware after Rails' RequestId, which gives a request its ID, and
    # before the logger. The application may have replaced or removed RequestId, or removed
    # or placed our middleware, so this checks the stack after Rails has built it.
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
