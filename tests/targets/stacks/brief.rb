# frozen_string_literal: true

# Runs one thread besides the main thread. It sleeps in one more call of deep than the
# thread before it. A line of input ends it and starts the next one.
$stdout.sync = true

def deep(count)
  count.zero? ? sleep : deep(count - 1)
end

def begun(count)
  thread = Thread.new { deep(count) }
  thread.name = "brief #{count}"
  Thread.pass until thread.status == 'sleep'
  thread
end

count = 0
thread = begun(count)
puts 'ready'
while $stdin.gets
  thread.kill.join
  thread = begun(count += 1)
  puts 'done'
end
