# At each step ("N"), N children are forked one after the other. Each
# fires :child once and exits.
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
