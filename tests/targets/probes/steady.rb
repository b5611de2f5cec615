# frozen_string_literal: true

# Two children that do the same a few hundred times per second: a span with one of 200
# keys and a varying duration, method calls, and exceptions.
require "tracepoint"
require "tracepoint/agent"

ORDER = Tracepoint.define_span(:order, { sku: String, price: Integer })
SKUS = Array.new(200) { |number| "sku-#{number}" }

class Steady
  def self.sell(random)
    ORDER.measure(SKUS.sample(random: random), random.rand(1000)) { count(random) }
  end

  def self.count(random)
    (1..random.rand(400)).sum
  end

  def self.fail
    raise "no"
  rescue RuntimeError
    nil
  end
end

2.times do |seed|
  fork do
    random = Random.new(seed)
    loop do
      Steady.sell(random)
      Steady.fail
      sleep 0.002
    end
  end
end
$stdout.puts "ready #{Process.pid}"
$stdout.flush
at_exit { Process.kill(:KILL, 0) }
$stdin.read
