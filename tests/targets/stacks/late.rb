# frozen_string_literal: true

# One thread sleeps while another thread keeps the GVL busy, so that each sleep ends late.
# Prints "ready PID". Answers each line "go SECONDS" with a line of JSON: how long the
# first thread slept, and how much later it ran again, in ns.
require "json"

NAP = 0.02

class Late
  def self.now
    Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
  end

  def initialize
    @orders = Queue.new
    @answers = Queue.new
    @busy = false
    Thread.new { serve }.name = "sleeper"
  end

  def serve
    loop { @answers << nap_for(@orders.pop) }
  end

  def nap_for(seconds)
    last = Late.now + (seconds * 1e9)
    slept = late = 0
    while Late.now < last
      before = Late.now
      nap
      late += Late.now - before - (NAP * 1e9).to_i
      slept += (NAP * 1e9).to_i
    end
    @busy = false
    { slept_ns: slept, late_ns: late }
  end

  def nap
    sleep NAP
  end

  def work
    index = 0
    index += 1 while @busy
  end

  def go(seconds)
    @busy = true
    @orders << seconds
    work
    @answers.pop
  end
end

late = Late.new
$stdout.sync = true
puts "ready #{Process.pid}"
while (line = $stdin.gets)
  puts JSON.generate(late.go(Float(line.split[1])))
end
