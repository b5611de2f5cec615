# frozen_string_literal: true

# A method that a JIT has compiled, and that runs forever without a call.
#
#   spinning.rb
$stdout.sync = true

def spin(limit, factor)
  count = 0
  product = factor * 2
  count += 1 while count < limit
  product
end

def outer(size, scale)
  local = size + 1
  other = [scale]
  found = spin(local, scale)
  other.size + found
end

40.times { outer(10, 3) }
puts "ready"
outer(1 << 60, 7)
