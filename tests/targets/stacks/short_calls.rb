# frozen_string_literal: true

# Calls two methods in turn forever. "ready" reports the nanoseconds that a call of each
# takes, by the cost of loops that call one of them alone. ARGV: iterations of each loop.

class Work
  def short
    i = 0
    i += 1 while i < SHORT
  end

  def long
    i = 0
    i += 1 while i < LONG
  end
end

SHORT, LONG = ARGV.map { |word| Integer(word) }
WORK = Work.new

def run(names)
  names.each { |name| WORK.send(name) }
end

def now
  Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID, :nanosecond)
end

def cost(name)
  names = [name] * [1_000_000 / LONG, 1000].min
  began = now
  run(names)
  (now - began).fdiv(names.size)
end

# The least of several times, because other programs disturb it. The methods take turns: a
# slow phase of the machine must not change their ratio.
rounds = Array.new(40) { %i[short long].map { |name| cost(name) } }
puts "ready #{rounds.transpose.map(&:min).join(" ")}"
$stdout.flush
names = %i[short long] * 500
loop { run(names) }
