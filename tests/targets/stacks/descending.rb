# frozen_string_literal: true

# Each frame spins when it is the newest and no frame was ever below it, so the VM's stack
# below it is still unwritten. A JIT does not write the pc of a frame that it pushes.

MS = 1_000_000
FRAMES = 600 # of 7 words: each place of a page is the end of a frame

def descend(depth, spins)
  i = 0
  i += 1 while i < spins # no call, which would push a frame
  descend(depth - 1, spins) if depth > 1
end

def now
  Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
end

def took(spins)
  began = now
  descend(1, spins)
  now - began
end

100.times { descend(2, 10) } # the JIT compiles it
spins = 10
spins *= 2 until Array.new(3) { took(spins) }.min > 2 * MS

$stdout.sync = true
puts "ready #{Process.pid}"
$stdin.gets
descend(FRAMES, spins)
puts "done"
$stdin.gets # Ruby frees the stack before it exits
