# frozen_string_literal: true

# Waits of known lengths, each in its own thread and method. "waits SECONDS": all threads
# wait for a sleeping thread. "fight SECONDS": two threads compete for the GVL; "crowd
# SECONDS": twenty. Each thread answers "NAME NS CPU_NS READY_NS STOLEN_NS": its time by its
# own clocks, its wait for a CPU by the kernel's, and the time that a hypervisor took from
# all CPUs meanwhile. "done" follows. A competing thread may lose the CPU at any moment,
# even while it reads the clocks: it reads them inside its method, and outside "burn".

require "socket"

def now
  Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
end

def cpu
  Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID, :nanosecond)
end

# Time in which the thread was runnable, but had no CPU: proc(5), schedstat.
def ready
  File.read("/proc/thread-self/schedstat").split[1].to_i
end

# Time that no thread's CPU clock includes: proc(5), stat.
def stolen
  File.foreach("/proc/stat").first.split[8].to_i * 10_000_000
end

class Waits
  WAITS = %i[wait_lock wait_queue wait_socket wait_pipe wait_child wait_sleep].freeze
  FIGHTS = %i[fight_one fight_two].freeze
  CROWD = ([:fight_crowd] * 20).freeze

  def initialize(seconds)
    @seconds = seconds
    @lock = Mutex.new
    @queue = Queue.new
    @socket, @peer = UNIXSocket.pair
    @pipe, @input = IO.pipe
    @held = Queue.new
    @slept = Queue.new
  end

  def waits
    holder = Thread.new { hold }
    @held.pop
    input, @child_input = IO.pipe
    @child = spawn("cat", in: input)
    input.close
    lines = all(WAITS) { |name| measured(name) { send(name) } }
    holder.join
    lines
  end

  def fight
    all(FIGHTS) { |name| send(name) }
  end

  def crowd
    all(CROWD) { |name| send(name) }
  end

  private

  def all(names)
    names.map { |name| Thread.new { yield name } }.map(&:value)
  end

  # The other threads' waits end when the sleeping thread wakes up.
  def hold
    @lock.synchronize do
      @held << true
      @slept.pop
    end
    @queue << true
    @peer.write("x")
    @input.write("x")
    @child_input.close
  end

  def measured(name)
    Thread.current.name = name.to_s
    before = [stolen, ready, cpu, now].reverse # reading a file may take long
    yield
    took = [now, cpu, ready, stolen].zip(before).map { |one, other| one - other }
    "#{name} #{took.join(" ")}"
  end

  def wait_sleep
    sleep(@seconds) # the wait that is measured
    @slept << true
  end

  def wait_lock
    @lock.lock
  end

  def wait_queue
    @queue.pop
  end

  def wait_socket
    @socket.read(1)
  end

  def wait_pipe
    @pipe.read(1)
  end

  def wait_child
    Process.wait(@child)
  end

  def burn
    start = now
    nil while now - start < @seconds * 1e9
  end

  def fight_one
    measured(:fight_one) { burn }
  end

  def fight_two
    measured(:fight_two) { burn }
  end

  def fight_crowd
    measured(:fight_crowd) { burn }
  end
end

$stdout.sync = true
puts "ready #{Process.pid}"
while (line = $stdin.gets)
  verb, seconds = line.split
  puts Waits.new(Float(seconds)).public_send(verb), "done"
end
