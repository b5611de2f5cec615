# frozen_string_literal: true

# A Ruby program for the benchmarks to trace. One command a line on standard
# input, one answer a line:
#
#   fire NAME TIMES    ns a fire, of this thread's processor time
#   define COUNT       so many probes more: ns each, images, bytes of memory

require "tracepoint"
require_relative "empty"

EMPTY = EmptyC.new
TWO = Tracepoint.define(:two, { id: Integer, sku: String }, provider: :bench)
TWELVE = Tracepoint.define(:twelve, ("a".."l").to_h { |name| [name.to_sym, Integer] }, provider: :bench)
SPAN = Tracepoint.define_span(:span, { id: Integer }, provider: :bench)

def timed(times)
  start = Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID, :nanosecond)
  yield
  (Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID, :nanosecond) - start).fdiv(times)
end

FIRES = {
  "site" => lambda { |times|
    i = 0
    while i < times
      EMPTY.trap(1, "x")
      i += 1
    end
  },
  "site12" => lambda { |times|
    i = 0
    while i < times
      EMPTY.trap(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
      i += 1
    end
  },
  "two" => lambda { |times|
    i = 0
    while i < times
      TWO.fire(1, "x")
      i += 1
    end
  },
  "twelve" => lambda { |times|
    i = 0
    while i < times
      TWELVE.fire(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
      i += 1
    end
  },
  "span" => lambda { |times|
    i = 0
    while i < times
      SPAN.measure(1) {}
      i += 1
    end
  }
}.freeze

def memory
  File.read("/proc/self/smaps_rollup")[/^Pss: +(\d+)/, 1].to_i * 1024
end

def define_many(count)
  names = Array.new(count) { |i| :"many_#{i}" }
  operands = { id: Integer, sku: String }.freeze
  GC.start
  before = memory
  start = Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
  names.each { |name| Tracepoint.define(name, operands, provider: :bench) }
  each = (Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond) - start).fdiv(count)
  "#{each} 0 #{memory - before}"
end

puts "ready"
$stdout.flush
while (line = $stdin.gets)
  command, *words = line.split
  if command == "define"
    puts define_many(Integer(words.first))
  else
    name, times = words
    times = Integer(times)
    puts timed(times) { FIRES.fetch(name).call(times) }
  end
  $stdout.flush
end
