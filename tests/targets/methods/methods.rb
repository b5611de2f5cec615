# frozen_string_literal: true

# Calls of known methods, in known numbers, whose times this program measures. Each line
# of its input runs one step, and it answers "done" and the times in ns.
$LOAD_PATH.unshift File.expand_path("../../../ruby/lib", __dir__)
require "tracepoint/agent" unless ARGV.include?("bare")

$stdout.sync = true

def now
  Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
end

# The program's own measurements of its calls, from inside them.
TIMES = Hash.new { |times, name| times[name] = [] }

class Order
  def total
    lines
    lines
  end

  def lines
    timed("lines") { sleep 0.004 }
  end

  def self.find
    timed("find") { sleep 0.002 }
  end

  def self.timed(name)
    before = Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
    yield
  ensure
    TIMES[name] << (Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond) - before)
  end

  def timed(name)
    before = Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
    yield
  ensure
    TIMES[name] << (Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond) - before)
  end
end

module Work
  class Refused < StandardError; end
  class Item; end

  def self.fib(number)
    number < 2 ? number : fib(number - 1) + fib(number - 2)
  end

  def self.refuse
    raise Refused, "no"
  end

  def self.attempt
    refuse
  rescue Refused
    nil
  end

  # Time that a call spends in calls of itself is counted once.
  def self.nest(depth)
    sleep 0.003
    nest(depth - 1) if depth > 1
  end

  # Overflows the stack. Ruby then reports no returns.
  def self.sink(depth)
    sink(depth + 1)
  end

  def self.float
    sink(0)
  rescue SystemStackError
    sleep 0.3
  end

  # A class that did not exist when the hook was armed.
  def self.late
    late = Class.new { def run; end }
    Object.const_set(:Late, late) unless Object.const_defined?(:Late)
    7.times { late.new.run }
  end

  def self.make(count)
    count.times { Item.new }
  end
end

STEPS = {
  "orders" => -> { 10.times { Order.new.total } and 20.times { Order.find } },
  "fib" => -> { Work.fib(15) },
  "nest" => -> { Work.nest(5) },
  "raise" => -> { 30.times { Work.attempt } },
  "items" => -> { Work.make(500) },
  "threads" => -> { Array.new(8) { Thread.new { 50.times { Work.fib(5) } } }.each(&:join) },
  "fibers" => -> { 20.times { Fiber.new { Work.fib(5) }.resume } },
  "overflow" => -> { 2.times { Work.float } },
  "gc" => -> { 5.times { GC.start } },
  "late" => -> { Work.late },
  "fork" => -> { Process.wait(fork { Work.fib(5) }) },
  "exec" => -> { exec("ruby", __FILE__) },
  "spawn" => -> { spawn("sleep", "1000") },
  "die" => -> { 300.times { Work.attempt } and Work.refuse },
  "none" => -> {}
}.freeze

puts "ready"
while (line = $stdin.gets)
  step = STEPS[line.chomp] or break
  TIMES.clear
  before = now
  step.call
  TIMES["all"] << (now - before)
  puts "done #{TIMES.map { |name, times| "#{name}=#{times.join(",")}" }.join(" ")}"
end
