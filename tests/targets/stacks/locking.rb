# frozen_string_literal: true

# Threads that lock, wait, and join all the time, but never block forever.
first, second = Array.new(2) { Thread::Mutex.new }
queue = Thread::Queue.new

4.times do
  Thread.new do
    loop do
      first.synchronize { second.synchronize { Thread.pass } }
      second.synchronize { Thread.pass }
      queue << 1
      queue.pop
    end
  end
end
2.times do
  Thread.new { loop { Thread.new { first.synchronize { nil } }.join } }
end
puts "ready #{Process.pid}"
$stdout.flush
$stdin.gets
