# frozen_string_literal: true

# Every 50th request takes a slow path. Each line of input is a kind of slow path and a
# number of requests. The answer is "done NS SUSPENDED": the time that the slow requests
# took by their own clock, and the part of it in which their fiber was suspended.
#
#   on_cpu     the slow path has the CPU all the time
#   off_cpu    the slow path sleeps
#   locked     the slow path waits for a mutex that another thread holds
#   contended  the slow path has the CPU for its time, but two threads want the GVL, too
#   fibers     the slow path has the CPU, and is suspended half of the time: another fiber
#              of the thread runs then
#   nested     as on_cpu, within a second span
#   forked     as on_cpu, in a child that begins with the first request
#
# A number as the only argument is the time of the slow path, in seconds.

require "tracepoint"

class Requests
  REQUEST = Tracepoint.define_span(:request, { id: Integer, path: String }, provider: :web)
  INNER = Tracepoint.define_span(:inner, {}, provider: :web)
  QUICK = 0.0005
  SLICES = 20

  attr_reader :suspended_ns

  def initialize(seconds)
    @seconds = seconds
    @least_ns = @most_ns = @suspended_ns = 0
    @lock = Mutex.new
    @id = 0
  end

  # The durations of the slow spans, measured inside and outside of them.
  def run(way, number)
    @least_ns = @most_ns = @suspended_ns = 0
    slow = method("slow_#{way}")
    number.times do |n|
      if n % 50 == 49
        @most_ns += took { request("/slow") { @least_ns += took { slow.call } } }
      else
        request("/quick") { quick }
      end
    end
    "#{@least_ns} #{@most_ns}"
  end

  def request(path, &block)
    REQUEST.measure(@id += 1, path, &block)
  end

  def run_fibers(_way, number)
    requests = Fiber.new { run("fibers", number) }
    times = nil
    until times
      times = requests.resume
      other_work
    end
    times
  end

  def run_forked(_way, number)
    reader, writer = IO.pipe
    waits, @ends = IO.pipe
    fork do
      @ends.close
      writer.puts run("on_cpu", number)
      waits.read # until the parent ends: code of a process that ended has no names
    end
    reader.gets.chomp
  end

  private

  def now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end

  def cpu_now
    Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID)
  end

  def burn(seconds)
    finish = now + seconds
    nil while now < finish
  end

  def took
    began = Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
    yield
    Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond) - began
  end

  def quick
    burn(QUICK)
  end

  def slow_on_cpu
    burn(@seconds)
  end

  def slow_off_cpu
    sleep(@seconds) # the wait that is measured
  end

  def slow_locked
    held = Queue.new
    holder = Thread.new do
      @lock.synchronize do
        held << true
        sleep(@seconds) # so long the other waits for the lock, which is measured
      end
    end
    held.pop
    @lock.synchronize { nil }
    holder.join
  end

  def slow_contended
    others = Array.new(2) { Thread.new { loop { nil } } }
    finish = cpu_now + @seconds
    nil while cpu_now < finish
    others.each(&:kill).each(&:join)
  end

  def slow_fibers
    SLICES.times do
      burn(@seconds / SLICES / 2)
      @suspended_ns += took { Fiber.yield }
    end
  end

  def slow_nested
    INNER.measure { burn(@seconds) }
  end

  def other_work
    burn(@seconds / SLICES / 2)
  end
end

$stdout.sync = true
requests = Requests.new(Float(ARGV.fetch(0, "0.2")))
puts "ready #{Process.pid}"
while (line = $stdin.gets)
  way, number = line.split
  take = %w[fibers forked].include?(way) ? "run_#{way}" : "run"
  puts "done #{requests.public_send(take, way, Integer(number))} #{requests.suspended_ns}"
end
