# At each step: fires switch:event 10 times and runs switch:work 5 times, and answers
# how many of the first fired. SIGPROF toggles all probes: $MODE=signal.
require "tracepoint"

EVENT = Tracepoint.define(:event, {i: Integer}, provider: :switch)
WORK = Tracepoint.define_span(:work, {i: Integer}, provider: :switch)

# Not puts: the main thread may be in one, and Ruby 3.3 raises then.
trap("PROF") { $stdout.syswrite(Tracepoint.disabled? ? "off\n" : "on\n") }
if ENV["MODE"] == "signal"
  Tracepoint.configure do |config|
    config.mode = :signal
    config.signal = "PROF"
  end
end

$stdout.sync = true
puts "ready"
while $stdin.gets
  fired = Array.new(10) { |i| EVENT.fire(i) }
  5.times { |i| WORK.measure(i) { nil } }
  puts fired.count(true)
end
