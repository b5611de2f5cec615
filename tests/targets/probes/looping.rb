# Eight threads that define, fire, disable, fork, and wait: N rounds each at each step
# ("N"). Each round fires loop:round three times: once here and twice in a child. The
# child's threads define probes, and the child exits while they do so.
#
# Probes cannot be removed: each round uses the same ones; only children define new ones.
require "tracepoint/testing"

THREADS = 8
KEPT = 20
ROUND = Tracepoint.define(:round, {thread: Integer}, provider: :loop)
WORK = Tracepoint.define_span(:work, {thread: Integer}, provider: :loop, result: {text: String})
FRESH = Tracepoint.define(:first, {}, provider: :fresh).provider

def check(what)
  abort "#{what} in #{Process.pid}" unless yield
end

def switched(off, on, probe)
  off.call
  check("disabled") { !probe.enabled? && !probe.fire(0) }
  on.call
end

def define_until_exit(number)
  i = 0
  loop do
    Tracepoint.define("fresh_#{number}_#{i += 1}", {text: String}, provider: :fresh).fire("x" * i)
    Tracepoint.fire("fresh:again_#{i % KEPT}", i, text: "y")
    sleep 0 if i > 100
  end
end

def child(thread)
  ROUND.fire(thread)
  defining = Array.new(2) { |number| Thread.new { define_until_exit(number) } }
  switched(Tracepoint.method(:disable), Tracepoint.method(:enable), ROUND)
  events = Tracepoint::Testing.capture { ROUND.fire(thread) }
  check("captured") { events.any? { |event| event.name == :round } }
  Thread.pass while defining.all?(&:alive?) && FRESH.probes.size < 10
  check("threads") { defining.all?(&:alive?) }
  exit
end

def round(thread, number)
  ROUND.fire(thread)
  WORK.measure(thread) { |span| span[:text] = "z" * number }
  probe = Tracepoint.define("kept_#{number % KEPT}", {id: Integer}, provider: "loop#{thread}")
  switched(probe.provider.method(:disable), probe.provider.method(:enable), probe)
  probe.fire(number)
  Tracepoint.fire("loop#{thread}:undeclared_#{number % KEPT}", number)
  Process.wait(fork { child(thread) })
  check("child #{$?.inspect}") { $?.success? }
end

rounds = Array.new(THREADS) { Queue.new }
done = Queue.new
rounds.each_with_index do |queue, thread|
  Thread.new do
    while (count = queue.pop)
      count.times { |number| round(thread, number) }
      done << thread
    end
  end.abort_on_exception = true
end

$stdout.sync = true
puts "ready"
while (line = $stdin.gets)
  rounds.each { |queue| queue << line.to_i }
  THREADS.times { done.pop }
  GC.start
  puts "done #{ROUND.enabled?} #{Tracepoint.stats[:failed]}"
end
