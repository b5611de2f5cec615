# frozen_string_literal: true

# A program of many methods whose busy thread measures how much CPU the other threads of the
# process use before it has the GVL again: for so long they kept it. "reset" starts again.
# "longest" prints the maximum in µs, and the maximum without the garbage collector's time.
$LOAD_PATH.unshift File.expand_path("../../../ruby/lib", __dir__)
require "tracepoint/agent"

class Many
  Integer(ARGV.first).times { |number| class_eval("def run#{number}; end", __FILE__, __LINE__) }
end

def others_us
  Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID, :microsecond) -
    Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID, :microsecond)
end

$longest = [0, 0]
Thread.new do
  while (word = $stdin.gets)
    puts $longest.join(" ")
    $longest = [0, 0] if word == "reset\n"
  end
  exit!
end
$stdout.sync = true
puts "ready"
collected, before = GC.total_time, others_us
loop do
  # The GVL may go between any two of these.
  next_collected, now, of_gc = GC.total_time, others_us, GC.total_time
  held = now - before
  $longest = $longest.zip([held, held - (of_gc - collected) / 1000]).map(&:max) if held > 500
  collected, before = next_collected, now
end
