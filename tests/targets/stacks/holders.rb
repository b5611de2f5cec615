# frozen_string_literal: true

# Threads that compete for the GVL. "fight SECONDS": one runs Ruby, one runs a C function
# that keeps the GVL, one makes system calls, which release it. "ractor SECONDS": the first
# two run in a Ractor of their own. Each thread answers "NAME CPU_NS READY_NS": its time on
# a CPU, and its time waiting for one. "sleep SECONDS": a C function sleeps with the GVL,
# while two other threads want it. It answers "NAME NS 0", the time when it ended, by
# CLOCK_REALTIME. "late SECONDS": the two others want the GVL only some time after the sleep
# has begun. "begin SECONDS": they have just been created, and never had the GVL.
# "done" follows.

# The thread's time on a CPU, and its time waiting for one: proc(5), schedstat.
def times
  File.read("/proc/thread-self/schedstat").split.first(2).map(&:to_i)
end

def now
  Process.clock_gettime(Process::CLOCK_MONOTONIC)
end

class Holders
  LARGE = 3**40_000

  def initialize(seconds)
    @seconds = seconds
    @till = now + seconds
  end

  def fight
    %i[hold_ruby hold_c give_away].map { |name| Thread.new { timed(name) } }.map(&:value)
  end

  def ractor
    ractor = Ractor.new(@seconds) do |seconds|
      holders = Holders.new(seconds)
      %i[hold_ruby hold_c].map { |name| Thread.new { holders.timed(name) } }.map(&:value)
    end
    ractor.respond_to?(:value) ? ractor.value : ractor.take
  end

  def sleep
    others = Array.new(2) { Thread.new { hold_ruby } }
    Thread.new { hold_asleep }.join
    ended = Process.clock_gettime(Process::CLOCK_REALTIME, :nanosecond)
    others.each(&:kill)
    ["hold_asleep #{ended} 0"]
  end

  # No thread can run Ruby while one sleeps with the GVL: these threads begin by the clock.
  def late
    others = Array.new(2) do
      Thread.new do
        Kernel.sleep(@seconds / 2)
        hold_ruby
      end
    end
    Thread.pass until others.all?(&:stop?)
    sleep_with_gvl(@seconds)
    others.each(&:kill)
    []
  end

  def begin
    others = Array.new(2) { Thread.new { hold_ruby } }
    sleep_with_gvl(@seconds)
    others.each(&:kill)
    []
  end

  def timed(name)
    before = times # of threads that had this kernel thread, too
    send(name)
    "#{name} #{times.zip(before).map { |one, other| one - other }.join(" ")}"
  end

  private

  def hold_ruby
    1000.times(&:succ) while now < @till
  end

  def hold_c
    LARGE.pow(3) while now < @till
  end

  def give_away
    File.open("/dev/null", "w") do |file|
      file.syswrite("x") while now < @till
    end
  end

  def hold_asleep
    sleep_with_gvl(@seconds)
  end

  def sleep_with_gvl(seconds)
    USLEEP.call((seconds * 1e6).to_i)
  end
end

if ARGV.include?("fiddle")
  require "fiddle"
  address = Fiddle.dlopen(nil)["usleep"]
  USLEEP = Fiddle::Function.new(address, [Fiddle::TYPE_INT], Fiddle::TYPE_INT, need_gvl: true)
end
Warning[:experimental] = false
$stdout.sync = true
puts "ready #{Process.pid}"
while (line = $stdin.gets)
  verb, seconds = line.split
  puts Holders.new(Float(seconds)).public_send(verb), "done"
end
