# frozen_string_literal: true

# Threads in every state: BURNERS (default 2) that share the GVL, one asleep, one in
# IO.select. The main thread waits for a line and answers "go" with "done".
#
#   states.rb [BURNERS]
$stdout.sync = true

class Work
  @burning = 0

  class << self
    attr_reader :burning
  end

  def self.burn
    count = 0
    @burning += 1
    count += 1 while true
  end

  def self.nap
    sleep
  end

  def self.watch(stream)
    IO.select([stream])
  end
end

def wait
  puts "done" while $stdin.gets
end

def named(name, &block)
  Thread.new(&block).tap { |thread| thread.name = name }
end

never, held = IO.pipe
sleepers = [named("napping") { Work.nap }, named("watching") { Work.watch(never) }]
Thread.pass until sleepers.all? { |thread| thread.status == "sleep" }
burners = ARGV.fetch(0, 2).to_i
burners.times { |n| named("burner #{n}") { Work.burn } }
# A thread that has not started has no stack yet. On a busy machine, this takes long.
Thread.pass until Work.burning == burners
puts "ready #{Process.pid}"
wait
held.close
