# frozen_string_literal: true

# Programs whose methods are measured with the thread's own clocks.
#
# Says "ready PID". For each line "go PROGRAM SECONDS" it runs the program in threads that
# have waited since before "ready", and answers with a line of JSON: wall and CPU time of
# each thread and of each of its methods, in ns. "programs" lists the programs.
#
# Work is fixed: a number of iterations that is calibrated once at the start. Clocks are
# read before and after each call, and the cost of reading them is subtracted. Calls that
# clocks would distort (calls-*) are measured with loops without clocks, in the main
# thread, before and after the program runs.
require "json"
require "zlib"

module Clock
  def self.wall
    Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
  end

  def self.cpu
    Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID, :nanosecond)
  end

  # CPU time that a block takes, in ns.
  def self.spent
    before = cpu
    yield
    cpu - before
  end
end

module Median
  def self.of(numbers)
    numbers.sort[numbers.size / 2]
  end
end

# A thread's times by its clocks, and as the kernel accounts for them.
class Times
  attr_reader :wall, :cpu, :run, :delay

  def self.before(tid)
    new(tid).schedule.clocks
  end

  # Reading the file releases the GVL: a wait for it is after the end.
  def self.after(tid)
    new(tid).clocks.schedule
  end

  def initialize(tid)
    @file = "/proc/self/task/#{tid}/schedstat"
  end

  def clocks
    @cpu = Clock.cpu
    @wall = Clock.wall
    self
  end

  def schedule
    @run, @delay = File.read(@file).split.map(&:to_i)
    self
  end

  def since(other)
    { wall_ns: @wall - other.wall, cpu_ns: @cpu - other.cpu, run_ns: @run - other.run, delay_ns: @delay - other.delay }
  end
end

# Methods of Ruby work. None calls another method.
class Work
  MAKE = <<~RUBY
    def %<name>s(count)
      value = 7
      while count > 0
        value = (value * 5 + count) & 0xffff
        count -= 1
      end
      value
    end
  RUBY

  def self.make(*names)
    names.each { |name| class_eval(format(MAKE, name: name), __FILE__, __LINE__) }
  end

  make :calibrated

  class << self
    attr_accessor :usleep
  end

  # Iterations per microsecond; the fastest of many attempts, so that nothing else counts.
  def self.speed
    @speed ||= begin
      work = new
      200.times { work.calibrated(10) }
      20_000.0 / (Array.new(100) { Clock.spent { work.calibrated(20_000) } }.min / 1000.0)
    end
  end

  def self.iterations(micros)
    [(micros * speed).round, 1].max
  end
end

# Calls of C functions. Deflating releases the GVL, the others keep it.
class Native
  def initialize
    random = Random.new(7)
    @text = random.bytes(30_000).unpack1("H*")
    @large = @text * 20
    @numbers = Array.new(8_000) { random.rand(1 << 40) }
    @base = 3**600
    @exponent = 5**120
    @modulus = 7**600
    @huge = 3**12_000
  end

  def call_pow
    @base.pow(@exponent, @modulus)
  end

  def call_sort
    @numbers.sort
  end

  def call_deflate
    Zlib.deflate(@text, 1)
  end

  def call_crc32
    Zlib.crc32(@large)
  end

  def call_times
    "0123456789" * 20_000
  end

  def call_to_s
    @huge.to_s
  end

  def call_sum
    @large.sum
  end

  def call_pack
    @numbers.pack("w*")
  end
end

# A measured method: its name as profilers show it, and the call. A profiler that does not
# name C functions shows the caller instead.
class Entry
  attr_reader :name

  def initialize(name, caller = nil, &code)
    @name = name
    @caller = caller
    @code = code
    clear
  end

  def clear
    @wall = @cpu = @calls = 0
  end

  # The clock of CPU time is read outermost: reading it is a system call, at whose end
  # the thread may lose its CPU, and this wait is not the method's.
  def measure
    cpu = Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID, :nanosecond)
    wall = Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
    @code.call
    wall = Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond) - wall
    @cpu += Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID, :nanosecond) - cpu
    @wall += wall
    @calls += 1
  end

  def repeat(times)
    times.times { measure }
    self
  end

  # Without the cost of reading the clocks.
  def times
    wall, cpu = Entry.overhead
    { wall_ns: (@wall - @calls * wall).round, cpu_ns: (@cpu - @calls * cpu).round, calls: @calls, caller: @caller }
  end

  def per_call
    [@wall.fdiv(@calls), @cpu.fdiv(@calls)]
  end

  # Wall and CPU time that a call that does nothing appears to take, in ns.
  def self.overhead
    @overhead ||= begin
      entry = new("nothing") {}
      found = Array.new(200) { entry.clear && entry.repeat(100).per_call }
      found.transpose.map { |values| Median.of(values) }
    end
  end
end

# The work of one thread: rounds, until the time is over.
class Job
  attr_reader :skipped

  def initialize(entries, skipped = [])
    @entries = entries
    @skipped = skipped
  end

  def prepare; end

  def finish; end

  def run(seconds)
    tid = Integer(File.readlink("/proc/thread-self").split("/").last)
    @entries.each(&:clear)
    before = Times.before(tid)
    rounds(before.wall + (seconds * 1e9).to_i)
    @answer = { name: Thread.current.name, tid: tid, **Times.after(tid).since(before) }
  end

  # The part that is measured.
  def rounds(last)
    turn while Clock.wall < last
  end

  def answer
    { **@answer, methods: @entries.to_h { |entry| [entry.name, entry.times] } }
  end
end

# Each of the methods once per round, always in the same order.
class Sequence < Job
  def turn
    @entries.each(&:measure)
  end
end

# Each of the methods once per round. The order changes, so that no rate keeps step.
class Shuffled < Job
  def initialize(entries, skipped = [])
    super
    @order = @entries.dup
    @random = Random.new(42)
  end

  def turn
    @order.shuffle!(random: @random)
    @order.each(&:measure)
  end
end

# Loops over short calls, without clocks. The truth of a method has two ends. The cost of
# the call itself, which is partly the caller's and partly the method's, is in one of them.
# A method alone is quicker than between others, as the CPU predicts its branches: the ends
# include its costs in both loops, alone and as a difference.
class Calls < Job
  METHODS = { short: 0.5, middle: 1, long: 1.5 }.freeze
  LOOP = <<~RUBY
    def %<name>s(times, short, middle, long)
      while times > 0
        %<calls>s
        times -= 1
      end
    end
  RUBY
  BODIES = {
    together: "short(short); middle(middle); long(long)",
    alone_short: "short(short)",
    alone_middle: "middle(middle)",
    alone_long: "long(long)",
    without_short: "middle(middle); long(long)",
    without_middle: "short(short); long(long)",
    without_long: "short(short); middle(middle)",
    alone_idle: "idle(0)",
    alone_nothing: ""
  }.freeze
  [*METHODS.keys, :idle].each { |name| class_eval(format(Work::MAKE, name: name), __FILE__, __LINE__) }
  BODIES.each { |name, calls| class_eval(format(LOOP, name: name, calls: calls), __FILE__, __LINE__) }

  def initialize(micros)
    super([])
    least = 0
    @counts = METHODS.map { |_, part| least = [Work.iterations(micros * part), least + 1].max }
    @times = (1000 / micros).to_i
    @costs = []
  end

  # CPU time of each loop as a part of the whole loop's, in the calling thread.
  def prepare
    40.times { BODIES.each_key { |name| __send__(name, 1, *@counts) } }
    found = Array.new(60) { BODIES.keys.to_h { |name| [name, Clock.spent { __send__(name, @times, *@counts) }] } }
    @costs << BODIES.keys.to_h { |name| [name, Median.of(found.map { |costs| costs[name].fdiv(costs[:together]) })] }
  end

  alias finish prepare

  def rounds(last)
    @rounds = 0
    super
  end

  def turn
    together(@times, *@counts)
    @rounds += @times
  end

  def answer
    before, after = @costs.last(2)
    costs = BODIES.keys.to_h { |name| [name, (before[name] + after[name]) / 2] }
    { **@answer, self: true, costs: [before, after], methods: shares(costs) }
  end

  private

  # Parts of the thread's CPU time: the least and the most that may be a method's own.
  def shares(costs)
    idle = costs[:alone_idle] - costs[:alone_nothing]
    ends = METHODS.keys.to_h { |name| ["Calls##{name}", ends_of(name, costs, idle)] }
    ends["Calls#together"] = [1 - ends.values.sum(&:last), 1 - ends.values.sum(&:first)]
    ends.transform_values { |low, high| in_ns(low, high) }
  end

  def ends_of(name, costs, idle)
    alone = costs[:"alone_#{name}"] - costs[:alone_nothing]
    low, high = [alone, 1 - costs[:"without_#{name}"]].minmax
    [low - idle, high]
  end

  def in_ns(low, high)
    low, high = [low, high].map { |part| (part.clamp(0.0, 1.0) * @answer[:cpu_ns]).round }
    { low_ns: low, high_ns: high, calls: @rounds }
  end
end

# The programs by name: the jobs of their threads.
module Programs
  COSTS = [50, 100, 150, 250, 400, 600, 900, 1300, 2000, 3000].freeze
  SCALES = { north: 1, east: 0.7, south: 1.6, west: 0.45 }.freeze
  RUNS = [0.2, 2, 20].product([0.5, 3]).freeze

  def self.ruby
    [Shuffled.new(tens("ruby", 1))]
  end

  def self.c
    [Shuffled.new(c_entries)]
  end

  def self.sleeps
    held, skipped = held_sleep("held", 0.001)
    entries = [*work("before" => 300, "after" => 1000), *sleeps_of("nap" => 0.0005, "doze" => 0.003), *held]
    [Shuffled.new(entries, skipped)]
  end

  def self.mix
    %w[left right].map do |side|
      held, skipped = held_sleep("#{side}_held", 0.0007)
      work = work("#{side}_quick" => 200, "#{side}_slow" => 1500)
      Shuffled.new([*work, *c_entries.first(5), *sleeps_of("#{side}_nap" => 0.002), *held], skipped)
    end
  end

  def self.threads
    SCALES.map { |name, scale| Shuffled.new(tens(name, scale)) }
  end

  def self.runs(run, wait)
    work = work("first" => run * 250, "second" => run * 750)
    [Sequence.new([*work, *sleeps_of("wait" => wait / 1000.0)])]
  end

  def self.calls(micros)
    [Calls.new(micros)]
  end

  def self.tens(name, scale)
    work(COSTS.each_with_index.to_h { |cost, index| ["#{name}_#{index}", cost * scale] })
  end

  # Ruby work: names, and how many microseconds each call takes.
  def self.work(costs)
    costs.map do |name, micros|
      Work.make(name)
      eval(<<~RUBY, binding, __FILE__, __LINE__ + 1) # one call site per method
        work, count = Work.new, Work.iterations(#{micros})
        100.times { work.#{name}(1) }
        Entry.new("Work##{name}") { work.#{name}(count) }
      RUBY
    end
  end

  def self.sleeps_of(seconds)
    waits(seconds) { |time| "sleep(#{time})" }
  end

  # A sleep that keeps the GVL, or the reason why it is missing.
  def self.held_sleep(name, seconds)
    @usleep ||= usleep_with_gvl
    return [[], [@usleep]] if @usleep.is_a?(String)

    Work.usleep = @usleep
    [waits(name => seconds) { |time| "Work.usleep.call(#{(time * 1e6).to_i})" }, []]
  end

  def self.waits(seconds)
    seconds.map do |name, time|
      Work.class_eval("def #{name}; #{yield(time)}; end", __FILE__, __LINE__)
      work = Work.new
      Entry.new("Work##{name}") { work.__send__(name) }
    end
  end

  def self.usleep_with_gvl
    require "fiddle"
    return "fiddle has no need_gvl" if Gem::Version.new(Fiddle::VERSION) < Gem::Version.new("1.0.1")

    Fiddle::Function.new(Fiddle::Handle::DEFAULT["usleep"], [Fiddle::TYPE_INT], Fiddle::TYPE_INT, need_gvl: true)
  rescue LoadError
    "fiddle is missing"
  end

  def self.c_entries
    native = Native.new
    [
      Entry.new("Integer#pow", "call_pow") { native.call_pow },
      Entry.new("Array#sort", "call_sort") { native.call_sort },
      Entry.new("Zlib.deflate", "call_deflate") { native.call_deflate },
      Entry.new("Zlib.crc32", "call_crc32") { native.call_crc32 },
      Entry.new("String#*", "call_times") { native.call_times },
      Entry.new("Integer#to_s", "call_to_s") { native.call_to_s },
      Entry.new("String#sum", "call_sum") { native.call_sum },
      Entry.new("Array#pack", "call_pack") { native.call_pack }
    ]
  end

  def self.all
    found = %w[ruby c sleeps mix threads].to_h { |name| [name, -> { __send__(name) }] }
    RUNS.each { |run, wait| found["runs-#{run}-#{wait}"] = -> { runs(run, wait) } }
    [0.1, 1, 10].each { |micros| found["calls-#{micros}"] = -> { calls(micros) } }
    found
  end
end

# Threads that wait for jobs.
class Crew
  def initialize(size)
    @done = Queue.new
    @queues = Array.new(size) { Queue.new }
    @queues.each_with_index do |queue, index|
      Thread.new { serve(queue) }.name = "worker #{index}"
    end
  end

  def run(jobs, seconds)
    jobs.each(&:prepare)
    jobs.zip(@queues) { |job, queue| queue << [job, seconds] }
    jobs.each { @done.pop }
    jobs.each(&:finish)
    { overhead_ns: Entry.overhead, skipped: jobs.flat_map(&:skipped).uniq, threads: jobs.map(&:answer) }
  end

  private

  def serve(queue)
    loop do
      job, seconds = queue.pop
      job.run(seconds)
      @done << job
    end
  end
end

Entry.overhead
crew = Crew.new(4)
programs = Programs.all
jobs = Hash.new { |known, name| known[name] = programs.fetch(name).call }
$stdout.sync = true
puts "ready #{$$}"
while (line = $stdin.gets)
  command, program, seconds = line.split
  case command
  when "programs" then puts JSON.generate(programs.keys)
  when "prepare" then puts JSON.generate(jobs[program].size)
  when "go" then puts JSON.generate({ program: program, **crew.run(jobs[program], Float(seconds)) })
  end
end
