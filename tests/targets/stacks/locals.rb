# frozen_string_literal: true

# A thread that sleeps with local variables of each kind.
#
#   locals.rb
$stdout.sync = true

# An object whose inspect must not be called.
class Order
  def inspect
    abort "somebody called a method"
  end

  def self.take(count, *rest, name: "nobody", **options, &block)
    ratio = 0.75
    [1, -2, nil].each do |item|
      block&.call(item, ratio)
    end
    [count, name, rest, options]
  end
end

def texts(text, symbol)
  long = "x" * 200
  raw = "a\e[31m\"\xFF".b
  list = [text, [1, [2, [3]]], *(1..9)]
  none = true
  unknown = false
  klass = Order
  order = Order.new
  huge = 1.5e300
  zero = 0.0
  sleep # in texts
  [symbol, long, raw, list, none, unknown, klass, order, huge, zero, later = nil, later]
end

worker = Thread.new do
  outer = :"a symbol that is #{Process.pid ? 'made' : 'not'}"
  Order.take(42, "more", name: "shop") { |item, *| texts("text", outer) if item }
end
worker.name = "worker"
Thread.pass until worker.status == "sleep"
puts "ready #{Process.pid}"
$stdin.gets
