# At each step: fires events and spans of all shapes while a capture runs, and writes
# the captured events as one line of JSON, in the form of `trace --json`.
require "json"
require "tracepoint/testing"

ORDER = Tracepoint.define(
  :order, {id: Integer, total: Float, sku: String, state: Symbol, paid: :bool}, provider: :shop
)
PAY = Tracepoint.define_span(:pay, {cents: Integer}, provider: :shop, result: {card: String})
OFF = Tracepoint.define(:off, {id: Integer}, provider: :closed)
OFF.provider.disable

def orders
  ORDER.fire(1, 1.5, "tea", :new, true)
  ORDER.fire(2**70, 2, :"green tea", "sent", false)
  ORDER.fire("x", nil, "a\0b", nil, nil)
  ORDER.fire(true, 2**60, "\u00e9", :paid, 1)
  ORDER.fire { [5, -1.5, "block", :late, false] }
  ORDER.fire { raise "on purpose" }
  OFF.fire(1)
end

def spans
  PAY.measure(1) do |span|
    span[:card] = "visa"
    catch(:out) { PAY.measure(2) { throw :out } }
  end
  begin
    PAY.measure(3) { raise IOError }
  rescue IOError
    nil
  end
  PAY.start(4).finish
  Thread.new { PAY.measure(5) { |span| span[:card] = 7 } }.join
  Fiber.new { PAY.measure(6) { nil } }.resume
end

def undeclared
  Tracepoint.fire("shop:seen", Time.at(0).utc, at: 1.5)
  Tracepoint.fire("shop:seen", [1, :two], at: nil)
  Tracepoint.fire("shop:seen", 1)
end

def as_traced(event)
  more = event.outcome ? {outcome: %i[returned raised thrown].index(event.outcome)} : {}
  {probe: event.names.first, arguments: more.merge(event.arguments, event.results)}
end

undeclared # so that the tracer knows its types
$stdout.sync = true
puts "ready"
while $stdin.gets
  events = Tracepoint::Testing.capture do
    orders
    spans
    undeclared
  end
  puts JSON.generate(events.map { |event| as_traced(event) })
end
