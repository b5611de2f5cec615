# frozen_string_literal: true

# Prints the depth that it has reached, and waits near the end of its stack.
$deepest = 0

def deeper(depth)
  $deepest = depth
  deeper(depth + 1)
end

def wait(depth)
  return wait(depth - 1) unless depth.zero?

  puts "ready #{$depth}"
  $stdin.gets
end

begin
  deeper(0)
rescue SystemStackError
  $depth = $deepest * 9 / 10
end
$stdout.sync = true
wait($depth)
