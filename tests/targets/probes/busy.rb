# Fires as fast as it can in three threads, forever; answers a line on standard
# input with the number of events so far and whether any probe reads as traced.
require "tracepoint"

SPAN = Tracepoint.define_span(:work, {id: Integer, sku: String}, provider: :busy)
EVENT = Tracepoint.define(:event, {id: Integer, sku: String}, provider: :busy)
COUNTS = [0, 0, 0]

$stdout.sync = true
3.times do |n|
  Thread.new do
    loop do
      SPAN.measure(n, "sku") { EVENT.fire(n, "sku") }
      COUNTS[n] += 1
      Thread.pass
    end
  end
end
puts "ready"
while $stdin.gets
  traced = [SPAN.enabled?, EVENT.enabled?].any?
  puts "done #{COUNTS.sum} #{traced}"
end
