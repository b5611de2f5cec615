# frozen_string_literal: true

# Uses the CPU in known ways, for stacks that the kernel walks. Each line of input is a verb
# and numbers; the answer at its end is "done". SECONDS are CPU time.
#
#   deep FRAMES SECONDS      burns at this depth
#   children NUMBER SECONDS  forks children in sequence; each burns and ends
#   threads NUMBER SECONDS   starts threads in sequence; each burns and ends
#   fibers NUMBER SECONDS    the same with fibers
#   gc SECONDS               collects little garbage among many live objects
#   litter SECONDS           collects much garbage
#   clocks                   prints the ms that it has marked and swept; 0 0 before 3.3
#   zeros SECONDS            reads /dev/zero, a megabyte at a time
#   spins NUMBER             counts, without a system call
#   changing SECONDS EACH COMPACTS
#                            defines, calls, and removes methods that burn 3 * EACH, and
#                            collects; compacts after every COMPACTS methods, 0: never
#   changes                  prints when each of them ran, as an Array of number, begin,
#                            and end, in ns of CLOCK_MONOTONIC
#   exec SECONDS             executes this program again, which burns at once
#   replace SECONDS          the same, from another thread than the main thread

def cpu
  Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID)
end

def now
  Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
end

def burn(seconds)
  start = cpu
  nil while cpu - start < seconds
end

class Walked
  def deep(frames, seconds)
    frames.zero? ? burn(seconds) : deep(frames - 1, seconds)
  end

  def children(number, seconds)
    number.times do
      child = fork do
        burn(seconds)
        exit!(true)
      end
      Process.wait(child)
    end
  end

  def threads(number, seconds)
    number.times { Thread.new { burn(seconds) }.join }
  end

  def fibers(number, seconds)
    number.times { Fiber.new { burn(seconds) }.resume }
  end

  def gc(seconds)
    $living ||= Array.new(500_000) { Object.new }
    start = cpu
    GC.start while cpu - start < seconds
  end

  def litter(seconds)
    $living = nil
    start = cpu
    while cpu - start < seconds
      GC.disable
      1_000_000.times { Object.new }
      GC.enable
      GC.start
    end
  end

  def clocks
    puts GC.stat.values_at(:marking_time, :sweeping_time).map(&:to_i).join(" ")
  end

  def zeros(seconds)
    start = cpu
    buffer = +""
    File.open("/dev/zero") { |file| file.sysread(1 << 20, buffer) while cpu - start < seconds }
  end

  def spins(number)
    number -= 1 while number.positive?
  end

  # Each method's name, file and line have the same number, in a frame of any of them.
  def changing(seconds, each, compacts)
    start = cpu
    $changes = []
    while cpu - start < seconds
      number = $changes.size + 1
      source = "def changed_#{number}(n); n.times { burn(#{each}) }; end"
      self.class.class_eval(source, "changed_#{number}.rb", number)
      name = :"changed_#{number}" # before the clock: a new string may begin a collection
      began = now
      send(name, 3)
      $changes << [number, began, now]
      self.class.remove_method("changed_#{number}")
      compacts.positive? && (number % compacts).zero? ? GC.compact : GC.start
    end
  end

  def changes
    puts $changes.inspect
  end
end

$stdout.sync = true
if ARGV.first == "burn"
  puts "again"
  burn(Float(ARGV[1]))
  puts "done"
end
puts "ready #{Process.pid}"
while (line = $stdin.gets)
  verb, *numbers = line.split
  again = -> { exec(RbConfig.ruby, __FILE__, "burn", *numbers) }
  again.call if verb == "exec"
  Thread.new(&again).join if verb == "replace"
  Walked.new.public_send(verb, *numbers.map { |one| one.include?(".") ? Float(one) : Integer(one) })
  puts "done"
end
