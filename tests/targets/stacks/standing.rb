# frozen_string_literal: true

# Threads and fibers that sleep at known places.
#
#   standing.rb [THREADS]
$stdout.sync = true

class Shop
  def self.start
    new.serve { |item| wait(item) }
  end

  def self.wait(_item)
    sleep # in wait
  end

  def serve
    yield 1
  end
end

def deep(count)
  count.zero? ? sleep : deep(count - 1)
end

def produce
  Fiber.yield 1 # in produce
end

fiber = Fiber.new { produce }
fiber.resume
worker = Thread.new { Shop.start }
worker.name = "worker"
holder = Thread.new do
  inner = Fiber.new { produce }
  inner.resume
  deep(3)
  inner
end
holder.name = "holder \e[31m"
more = Array.new(ARGV.fetch(0, 0).to_i) { Thread.new { deep(20) } }
asleep = ->(thread) { thread.status == "sleep" }
Thread.pass until [worker, holder, *more].all?(&asleep)
puts "ready #{Process.pid}"
$stdin.gets # in main
fiber.alive?
