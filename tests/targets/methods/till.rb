# frozen_string_literal: true

# A till with a known workload, which can begin once it is traced.
#
# The 20 orders are ten teas, six coffees, and four cakes. Cake is declined: its spans
# raise. Input starts it: "now", "traced" (when a probe is traced), "armed" (when the hook
# is armed), or "listened" (when a TracePoint is enabled). "exit" ends it.
$LOAD_PATH.unshift File.expand_path("../../../ruby/lib", __dir__)
require "tracepoint"
require "tracepoint/agent" unless ARGV.include?("bare")

$stdout.sync = true

class Till
  class Declined < StandardError; end

  CHECKOUT = Tracepoint.define_span(:checkout, { id: Integer, sku: String }, provider: :shop)
  ORDER = Tracepoint.define(:order, { id: Integer, sku: String, cents: Integer }, provider: :shop)
  SKUS = Array.new(10, "tea") + Array.new(6, "coffee") + Array.new(4, "cake")
  CENTS = { "tea" => 250, "coffee" => 320, "cake" => 410 }.freeze

  def self.traced?
    CHECKOUT.enabled? || ORDER.enabled?
  end

  def serve
    SKUS.each_with_index { |sku, id| order(id, sku) }
  end

  def order(id, sku)
    checkout(id, sku)
    ORDER.fire(id, sku, CENTS.fetch(sku))
  rescue Declined
    nil
  end

  def checkout(id, sku)
    CHECKOUT.measure(id, sku) do
      pay
      raise Declined, "no more #{sku}" if sku == "cake"
    end
  end

  def pay
    sleep 0.001
  end
end

WAITS = {
  "now" => -> { true },
  "traced" => -> { Till.traced? },
  "armed" => -> { Tracepoint::Agent.armed_by },
  "listened" => -> { ObjectSpace.each_object(TracePoint).any?(&:enabled?) },
  "exit" => -> { exit }
}.freeze

puts "ready"
while (line = $stdin.gets)
  sleep 0.001 until WAITS.fetch(line.chomp).call
  Till.new.serve
  puts "done"
end
