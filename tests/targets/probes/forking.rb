# At each step ("N") N children are made one after the other, each of which
# fires :child once and ends.
require "tracepoint"

CHILD = Tracepoint.define(:child, {n: Integer}, provider: :fork)

$stdout.sync = true
puts "ready"
while (line = $stdin.gets)
  line.to_i.times do |n|
    Process.wait(fork { CHILD.fire(n); exit! })
  end
  puts "done"
end
