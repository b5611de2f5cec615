# frozen_string_literal: true

# Spins in C and in Ruby, DEPTH frames deep. A command a line on standard input, an answer
# a line:
#
#   c NS     spin in C for so long a CPU; the part that was lost (spin.c), in 1/1e9
#   ruby NS  make turns of a loop for so much processor time; how many a second of it
#
#   spin.rb DEPTH LIBRARY

require "fiddle"

DEPTH = Integer(ARGV.fetch(0))
LONG = -Fiddle::TYPE_LONG_LONG
SPIN = Fiddle::Function.new(Fiddle.dlopen(ARGV.fetch(1))["spin"], [LONG], LONG)

def used
  Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID, :nanosecond)
end

def turn(number)
  number * 3 % 7
end

def turns(budget)
  count = 0
  start = used
  until (spent = used - start) >= budget
    1000.times { |number| turn(number) }
    count += 1000
  end
  count * 1e9 / spent
end

def down(left)
  return down(left - 1) if left.positive?

  while (line = $stdin.gets)
    verb, time = line.split
    puts verb == "c" ? SPIN.call(Integer(time)) : turns(Integer(time))
  end
end

$stdout.sync = true
puts "ready"
down(DEPTH)
