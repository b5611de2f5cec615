# Programs of many kinds. Each prints "ready PID" and works until a line arrives. Then it
# prints "right" if every result was the same as the first one.
#
#   injected.rb KIND
$stdout.sync = true
$stop = false
$main = Thread.current

def listen
  Thread.new do
    $stdin.gets
    $stop = true
    $main.wakeup if $main.alive?
  end
end

# Repeats a computation; each result must equal the first.
def repeat
  first = yield
  listen
  puts "ready #{$$}"
  wrong = 0
  (wrong += 1 if yield != first) until $stop
  puts(wrong.zero? ? "right" : "wrong #{wrong}")
end

def floats
  sum = 0.0
  2000.times { |i| sum = Math.sqrt((sum * 1.0000001) + (i / 3.0)) + (sum / 7.0) }
  sum
end

def still
  puts "ready #{$$}"
  yield
  puts "right"
end

case ARGV[0]
when "ruby" then repeat { floats }
when "bignum"
  a, b = 7**9001, 3**17001
  repeat { 20.times.map { |i| ((a + i) * b % 1_000_003) + ((b + i).to_s.size) } }
when "malloc"
  repeat { (1..200).map { |i| ("x" * (i * 37)).dup.concat("y" * i).hash & 0 | i }.sum }
when "gc" then repeat { GC.start(full_mark: false) || Array.new(1000) { |i| i.to_s }.size }
when "sleep"
  listen
  still { sleep(1000) until $stop }
when "gets" then still { $stdin.gets }
when "select" then still { IO.select([$stdin]) }
when "mutex"
  mutex = Mutex.new
  held = Queue.new
  Thread.new do
    mutex.synchronize do
      held << true
      $stdin.gets
    end
  end
  held.pop
  still { mutex.lock }
when "queue"
  queue = Queue.new
  Thread.new { queue << $stdin.gets }
  still { queue.pop }
when "threads"
  4.times { |i| Thread.new { i.even? ? loop { floats } : loop { sleep 0.001 } } }
  repeat { floats }
when "trap"
  %w[INT TERM HUP USR1 USR2].each { |name| trap(name) { nil } }
  listen
  still { sleep(1000) until $stop }
when "forked"
  read, write = IO.pipe
  child = fork do
    write.close
    listen
    puts "ready #{$$}"
    floats until $stop
    puts "right"
  end
  read.close
  Process.wait(child)
when "registers"
  # ARGV[1] is registers.S as a library. It runs without the GVL, so that
  # injected code can run in another thread meanwhile.
  require "fiddle"
  turn = Fiddle::Function.new(
    Fiddle.dlopen(ARGV[1])["turn"], [Fiddle::TYPE_VOIDP] * 2 + [Fiddle::TYPE_LONG, Fiddle::TYPE_VOIDP],
    Fiddle::TYPE_VOID
  )
  before = Array.new(256) { |i| (i + 1) * 0x0123456789ABCD }.pack("Q*")
  Thread.new { loop { sleep 0.001 } }
  repeat do
    # The rounding modes towards zero; no exception unmasked.
    after, other = "\0" * 2048, [0, 0, 0x7F80, 0x0F7F].pack("L4") + ("\0" * 240)
    turn.call(before, after, 1_000_000, other)
    [after, other]
  end
when "timed"
  # Takes the length of a wait, and prints how many milliseconds it took.
  puts "ready #{$$}"
  $stdin.gets
  began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  puts "sleeping"
  sleep Float(ARGV[1])
  took = Process.clock_gettime(Process::CLOCK_MONOTONIC) - began
  puts "took #{(took * 1000).round}"
else raise ARGV.inspect
end
