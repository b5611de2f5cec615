# frozen_string_literal: true

# The Rails application of bench/rails with all spans of the gem, which can be removed from
# the code that a request runs and restored: two processes would differ by more than the
# spans' cost. Lines of input: "with" or "without" spans from now on; "cpu", a request's CPU
# in ns; "objects", the number of objects that a request creates.
$LOAD_PATH.unshift File.expand_path("../../../ruby/lib", __dir__)
%w[rails net_http sidekiq redis puma].each { |feature| require "tracepoint/#{feature}" }
require_relative "requests"

module Spans
  NOTIFIER = ActiveSupport::Notifications.notifier

  @removed = {}

  class << self
    def without
      return unless @removed.empty?

      middleware_before.instance_variable_set(:@app, middleware.instance_variable_get(:@app))
      @removed = Tracepoint::Notifications::EVENTS.keys.to_h { |event| [event, remove(event)] }
      nil
    end

    def with
      middleware_before.instance_variable_set(:@app, middleware)
      @removed.each { |event, subscriber| NOTIFIER.subscribe(event, subscriber) }
      @removed = {}
      nil
    end

    private

    def middleware
      @middleware ||= middleware_before.instance_variable_get(:@app)
    end

    def middleware_before
      @middleware_before ||= stack.find { |one| one.instance_variable_get(:@app).is_a?(Tracepoint::Rack) }
    end

    def stack
      Enumerator.produce(Shop.instance.app) { |one| one.instance_variable_get(:@app) }
    end

    def remove(event)
      ours = NOTIFIER.listeners_for(event).filter_map do |listener|
        subscriber = listener.instance_variable_get(:@delegate)
        next unless subscriber.class.name.start_with?("Tracepoint::")

        NOTIFIER.unsubscribe(listener)
        subscriber
      end
      raise "#{ours.size} subscribers of #{event}" unless ours.size == 1

      ours.first
    end
  end
end

Requests.prepare
$stdout.sync = true
puts "ready"
while (command = $stdin.gets&.chomp)
  what = %w[with without].include?(command) ? Spans : Requests
  puts what.public_send(command) || "done"
end
