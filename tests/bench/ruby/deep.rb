# frozen_string_literal: true

# Burns CPU in a loop DEPTH frames deep. Answers each line on standard input with the
# number of iterations so far, and the monotonic clock in ns.
#
#   deep.rb DEPTH

$stdout.sync = true
DEPTH = Integer(ARGV.fetch(0))
TURNS = 20_000

def leaf(number)
  number * 3 % 7
end

def burn
  count = 0
  loop do
    index = 0
    while index < TURNS
      leaf(index)
      index += 1
    end
    count += TURNS
    next unless $stdin.wait_readable(0)
    break unless $stdin.gets

    puts "#{count} #{Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)}"
  end
end

# The other frames: <main>, burn, loop, leaf, and in some Rubies the block of loop.
def down(left)
  left.positive? ? down(left - 1) : burn
end

require "io/wait"
puts "ready"
down(DEPTH - 5)
