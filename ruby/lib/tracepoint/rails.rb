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
    # Behind Rails' own, which gives a request its identity; before its log.
    initializer "tracepoint.middleware" do |app|
      app.middleware.insert_after ::ActionDispatch::RequestId, Tracepoint::Rack
    end

    # The Gemfile may have it behind this gem.
    initializer("tracepoint.sidekiq") { require_relative "sidekiq" if defined?(::Sidekiq::Client) }
  end
end
