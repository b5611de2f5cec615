# frozen_string_literal: true

# Threads that rest for a millisecond, again and again, on one of forty stacks.
def rest(depth)
  depth.zero? ? sleep(0.001) : rest(depth - 1)
end

5.times { Thread.new { loop { 40.times { |depth| rest(depth) } } } }
puts "ready"
$stdout.flush
$stdin.gets
