# frozen_string_literal: true

# Works, and after the given number of milliseconds does as requested: exit, exec, fork,
# or kill. With storm, it starts short-lived threads without end.
what, wait = ARGV

def work
  (1..50).sum { |number| number * number }
end

$stdout.sync = true
puts "ready"
loop { Array.new(20) { Thread.new { work } }.each(&:join) } if what == "storm"
till = Process.clock_gettime(Process::CLOCK_MONOTONIC) + wait.to_i / 1000.0
work while Process.clock_gettime(Process::CLOCK_MONOTONIC) < till
case what
when "exec" then exec("sleep", "30")
when "fork" then fork { sleep 30 } && exit!(0)
when "kill" then Process.kill(:KILL, Process.pid)
end
