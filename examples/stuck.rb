# frozen_string_literal: true

# A program that hangs: two clerks lock two things in different order, and a mailer waits
# for letters that never arrive. See docs/stuck.md.
STOCK = Mutex.new
TILL = Mutex.new
LETTERS = Queue.new

def lock_both(first, second, meeting)
  first.synchronize do
    meeting << true
    sleep 0.01 until meeting.size == 2 # both hold their first lock
    second.synchronize { raise "never" }
  end
end

def deliver
  LETTERS.pop
end

meeting = Queue.new
{ "clerk 1" => [STOCK, TILL], "clerk 2" => [TILL, STOCK] }.each do |name, locks|
  Thread.new { lock_both(*locks, meeting) }.name = name
end
Thread.new { deliver }.name = "mailer"
Thread.new { loop { sleep 1 } }.name = "clock" # otherwise Ruby detects a deadlock
$stdout.sync = true
sleep 0.01 until meeting.size == 2
puts "ready"
sleep
