# frozen_string_literal: true

# A program whose events trigger the stacks that the benchmarks read. Each line of input is
# VERB DEPTH TIMES. The answer is the CPU time per event at this depth, in ns.

require "tracepoint"

HIT = Tracepoint.define(:hit, { number: Integer }, provider: :bench)
VERBS = {
  "fire" => -> { HIT.fire(1) },
  "ask" => -> { Process.ppid }
}.freeze

def deep(depth, times, event)
  return deep(depth - 1, times, event) if depth.positive?

  start = Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID, :nanosecond)
  times.times { event.call }
  (Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID, :nanosecond) - start).fdiv(times)
end

puts "ready"
$stdout.flush
while (line = $stdin.gets)
  verb, depth, times = line.split
  puts deep(Integer(depth), Integer(times), VERBS.fetch(verb))
  $stdout.flush
end
