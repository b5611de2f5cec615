# Three methods that burn 50, 30 and 20 % of the CPU by the thread's own clock, and
# three threads that sleep; ends when its standard input does.
def burn(seconds)
  till = now + seconds
  nil while now < till
end

def now
  Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID)
end

def half
  burn(0.025)
end

def third
  burn(0.015)
end

def fifth
  burn(0.01)
end

idle = Array.new(3) { |n| Thread.new { sleep }.tap { |thread| thread.name = "idle #{n}" } }
$stdout.sync = true
worker = Thread.new do
  loop do
    half
    third
    fifth
  end
end
worker.name = "burner"
Thread.pass until idle.all?(&:stop?)
puts "ready"
$stdin.read
