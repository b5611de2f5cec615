# Spans of methods, 23 events at each step:
#
#   Shop::Till#pay!       10  4 of 100 cents, 6 of 250
#   Shop::Till#each        3  with a block that throws
#   Shop::Till.open        2
#   Shop::Till#[]          4
#   Shop::Till#fail        4  raise
#   Shop::Till#undone      0  traced and put back, called once
require "tracepoint"

module Shop
  class Till
    extend Tracepoint::Methods

    def pay!(cents, currency: "EUR")
      [cents, currency]
    end
    trace :pay!, args: {cents: Integer, currency: String}

    trace def each
      yield 1
      :not_reached
    end

    trace def [](name)
      name
    end

    private trace def fail
      raise ArgumentError, "on purpose"
    end

    trace def undone; end
    untrace :undone

    trace_class_method def self.open
      new
    end

    def try
      fail
    rescue ArgumentError
      nil
    end
  end
end

$stdout.sync = true
puts "ready"
while $stdin.gets
  till = Array.new(2) { Shop::Till.open }.last
  4.times { till.pay!(100) }
  6.times { till.pay!(250, currency: "USD") }
  leave = proc { |one| throw :out, one }
  3.times { catch(:out) { till.each(&leave) } }
  4.times { till[:name] }
  4.times { till.try }
  till.undone
  puts "done"
end
