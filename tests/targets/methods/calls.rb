# frozen_string_literal: true

# A program whose calls are known: each line of input names a step.
$LOAD_PATH.unshift File.expand_path("../../../ruby/lib", __dir__)
if (version = ARGV.join(" ")[/version=(\S+)/, 1])
  Object.send(:remove_const, :RUBY_VERSION)
  RUBY_VERSION = version.freeze
end
require "tracepoint/agent" unless ARGV.include?("late")

$stdout.sync = true

class Plain
  def factorial(number)
    number < 2 ? 1 : number * factorial(number - 1)
  end

  def yields
    yield
    leaf
  end

  def leaf; end
  alias twig leaf

  def self.tower(height)
    tower(height - 1) if height.positive?
  end

  def fails
    raise ArgumentError, "no"
  end

  def rescues
    fails
  rescue ArgumentError
    leaf
  ensure
    twig
  end

  def throws
    throw :out
  end

  def catches
    catch(:out) { throws }
  end

  def breaks
    yields { break }
  end

  def self.build
    new.leaf
  end

  made = proc { leaf }
  Ractor.make_shareable(made) if defined?(Ractor)
  define_method(:made, &made)

  def method_missing(name, *)
    name == :ghost ? leaf : super
  end

  def respond_to_missing?(name, include_all = false)
    name == :ghost || super
  end
end

class Child < Plain
  def leaf # rubocop:disable Lint/UselessMethodDefinition -- it is called
    super
  end
end

module Tools
  module_function

  def help; end
end

module Louder
  refine String do
    def shout
      Tools.help
    end
  end
end
using Louder

class Timed
  def outer
    quick
    waits
  end

  def quick; end

  def waits
    sleep 1
  end

  def burns
    finish = cpu + 0.4
    nil while cpu < finish
  end

  def cpu
    Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID)
  end

  def collects
    GC.start
  end

  def collects_and_waits
    collects
    waits
  end
end

class Tiny
  def call; end
  def last; end
end

OBJECT = Object.new
def OBJECT.alone; end
Ractor.make_shareable(OBJECT) if defined?(Ractor)

def in_thread(number)
  number < 1 ? Plain.new.leaf : in_thread(number - 1)
end

def generate(fiber)
  Fiber.yield fiber
  Plain.new.leaf
end

def trees
  plain = Plain.new
  plain.factorial(3)
  plain.yields { Tools.help }
  plain.rescues
  plain.catches
  plain.breaks
  plain.made
  plain.ghost
  plain.twig
  Plain.build
  Child.new.leaf
  "a".shout
  OBJECT.alone
end

def turns
  first = Fiber.new { generate(1) }
  second = Fiber.new { generate(2) }
  [first, second, first, second].map(&:resume)
end

def in_ractor(what)
  case what
  when "trees" then trees
  when "many" then 2_000.times { in_thread(2) }
  end
end

# Runs the code that it receives. It does no IO: from 3.3 on, Ruby itself may hang if a
# thread waits for IO while other Ractors run.
def new_ractor
  Ractor.new(Ractor.current) do |main|
    while (what = Ractor.receive)
      in_ractor(what)
      main.send(what)
    end
  end
end

def have_ractors(what)
  $ractors.each { |ractor| ractor.send(what) }
  $ractors.each { Ractor.receive }
end

def in_a_child
  read, write = IO.pipe
  child = fork do
    sleep 0.001 until Tracepoint::Agent.armed_by
    yield
    write.puts "called"
    sleep
  end
  "#{child} #{read.gets}"
end

# A child of another Ractor sometimes hangs, even without an agent: a lock that a thread
# of the main Ractor held at the fork stays held. So the child also counts as ended if
# its only thread waits without a limit for another one (proc(5), "syscall": futex).
def end_of(child)
  until (ended = Process.wait2(child, Process::WNOHANG))
    if Dir.children("/proc/#{child}/task").size == 1 && File.read("/proc/#{child}/syscall").match?(/\A202 (\S+ ){3}0x0 /)
      Process.kill(:KILL, child)
      Process.wait(child)
      return "locked"
    end
    sleep 0.001
  end
  ended.last.exitstatus.inspect
end

STEPS = {
  "trees" => -> { trees },
  "threads" => -> { Array.new(10) { |number| Thread.new { in_thread(number) } }.each(&:join) },
  "fibers" => -> { turns },
  "ractor" => lambda {
    $ractor = Ractor.new { Ractor.receive }
  },
  "three ractors" => lambda {
    $ractors = Array.new(3) { new_ractor }
    have_ractors("nothing")
    $ractors.size.to_s
  },
  "in ractors" => lambda {
    have_ractors("trees")
    "trees"
  },
  "many in ractors" => -> { have_ractors("many").size.to_s },
  "fork in a ractor" => lambda {
    one = Ractor.new { end_of(fork { nil }) }
    one.respond_to?(:take) ? one.take : one.value
  },
  "brief ractors" => lambda {
    GC.stress = true
    # When Ruby collects a Ractor, it silences hooks.
    $kept = Array.new(2) { Ractor.new { 1 + 1 }.tap { |one| one.respond_to?(:take) ? one.take : one.value } }
    GC.stress = false
    $kept.size.to_s
  },
  "collect ractors" => lambda {
    $kept = nil
    4.times { GC.start }
  },
  "ractors" => lambda {
    read, write = IO.pipe
    2.times do
      Ractor.new(write.fileno) do |number|
        plain = Plain.new
        plain.breaks
        IO.for_fd(number, autoclose: false).syswrite(".")
        plain.breaks while true
      end
    end
    read.readpartial(1) + read.readpartial(1)
  },
  "strings" => -> { "abc".upcase.reverse },
  "slow" => -> { Timed.new.outer },
  "waits" => -> { Timed.new.waits },
  "burns" => -> { Timed.new.burns },
  "contend" => -> { Array.new(2) { Thread.new { Timed.new.burns } }.each(&:join) },
  "collect" => -> { Timed.new.collects },
  "collect slowly" => -> { Timed.new.collects_and_waits },
  "last" => -> { Tiny.new.last },
  "burst" => lambda {
    tiny = Tiny.new
    left = 200_000
    tiny.call while (left -= 1) >= 0
  },
  "towers" => -> { 2_000.times { Plain.tower(5) } },
  "armed" => -> { Tracepoint::Agent.armed_by ? "yes" : "no" },
  "load" => lambda {
    require "tracepoint/agent"
    sleep 0.001 until Tracepoint::Agent.armed_by
    Tiny.new.last
  },
  "exec" => -> { exec "sleep", "100" },
  "child" => -> { ($child = IO.popen("cat", "r+")).pid.to_s },
  "fork" => -> { in_a_child { Tiny.new.last } },
  "fork to burn" => -> { in_a_child { Timed.new.burns } }
}.freeze

puts "ready"
while (line = $stdin.gets)
  break if line == "exit\n"

  said = STEPS.fetch(line.chomp).call
  puts said.is_a?(String) ? "done #{said}" : "done"
end
