"""What a Ruby runs so that its structures can be found in its memory.

It makes threads, fibers, frames, methods and classes whose values are all different
and known, holds still, and says the address of one Array: the values themselves are
in there. One thread runs on, so that who runs can be told from who is the main one.
"""

from __future__ import annotations

SCRIPT = r"""
$stdout.sync = true
GC.disable
GIVEN, NAMES = [], []
def given(name, value) NAMES << name; GIVEN << value; value end

module RbtraceModule
  def in_module(hosts, left) instance_exec { hosts[left].recurse(left, hosts) } end
end
class RbtraceOuter
  class Inner; end
end
class RbtraceHost
  include RbtraceModule
  attr_reader :reader
  attr_writer :writer
  define_method(:defined_by_block) { 1 }
  def recurse(left, hosts)
    left == 0 ? Thread.stop : [1, [2, [3, hosts[left - 1].recurse(left - 1, hosts)]]]
  end
  def original(hosts, left) [4, in_module(hosts, left)] end
  alias aliased original
  def calls(x)
    x.rbtrace_first; x.rbtrace_second; x.rbtrace_third; x.rbtrace_fourth
  end
  def nested
    outer = proc { proc { 1 } }
    [outer, outer.call]
  end
end
COUNTS = [3, 7, 12, 25]
COUNTS.each do |n|
  RbtraceHost.class_eval(
    "def lines_#{n}(x)\n" + "x.to_s\n" * n + "end\n",
    "/rbtrace/lines_#{n}.rb", 70_000 + 1000 * n)
end

iseq_class = RubyVM::InstructionSequence
describe = lambda do |name, iseq|
  text = iseq.disasm
  places = text.scan(/^(\d{4,}) .*\(\s*(\d+)\)(?:\[\w*\])?\s*$/)
  last = text.scan(/^(\d{4,}) (\w+)/).last
  lines = places.map { |at, line| "#{at.to_i}:#{line}" }.join(",")
  $stdout.puts "iseq #{name} #{last[0].to_i + 1} #{lines}"
end
COUNTS.each do |n|
  name = "lines_#{n}"
  iseq = iseq_class.of(RbtraceHost.instance_method(name))
  describe.call(name, given("iseq_" + name, iseq))
end
host = RbtraceHost.new
outer, inner = host.nested
%w(recurse original in_module nested).each do |name|
  given("iseq_" + name, iseq_class.of(RbtraceHost.instance_method(name)))
  given("method_" + name, host.method(name))
  given("symbol_" + name, name.to_sym)
end
given("symbol_aliased", :aliased)
given("iseq_calls", iseq_class.of(RbtraceHost.instance_method(:calls)))
%w(first second third fourth).each { |name| given("call_" + name, :"rbtrace_#{name}") }
given("method_aliased", host.method(:aliased))
given("method_reader", host.method(:reader))
given("method_writer", host.method(:writer=))
given("method_defined_by_block", host.method(:defined_by_block))
given("method_c", [].method(:push))
given("iseq_outer", iseq_class.of(outer))
given("iseq_inner", iseq_class.of(inner))
given("iseq_top_1", iseq_class.compile("1"))
given("iseq_top_2", iseq_class.compile("2\n3"))
given("class_host", RbtraceHost)
given("class_inner", RbtraceOuter::Inner)
given("module", RbtraceModule)
RbtraceHost.instance_variable_set(:@rbtrace, "a variable of RbtraceHost")
inner_class = RbtraceOuter::Inner
inner_class.instance_variable_set(:@rbtrace, "a variable of RbtraceOuter::Inner")
given("nil", nil)
given("text_short", "rbtrace")
given("text_long", "rbtrace" * 200)
singles = Array.new(4) { Object.new }
singles.each_with_index do |single, i|
  given("single_#{i}", single)
  given("singleton_#{i}", (class << single; self; end))
end

hosts = Array.new(9) { RbtraceHost.new }
hosts.each_with_index { |one, i| given("host_#{i}", one) }
threads = [Thread.main]
threads << Thread.new { host.aliased(hosts, 8) }
fibers = []
threads << Thread.new do
  second = Fiber.new { Thread.stop }
  first = Fiber.new { second.resume }
  fibers << ["first", first] << ["second", second]
  first.resume
end
8.times do |i|
  # With a pattern that no other member has.
  threads << (i % 3 == 0 ? Thread.new { Thread.stop } : Thread.new { sleep })
end
3.times do |i|
  fibers << ["created_#{i}", Fiber.new { 1 }]
  fibers << ["suspended_#{i}", Fiber.new { Fiber.yield }.tap { |f| f.resume }]
  fibers << ["ended_#{i}", Fiber.new { 1 }.tap { |f| f.resume }]
end

main = Thread.main
runner = Thread.new do
  Thread.pass until threads.all?(&:stop?)
  threads << Thread.current
  threads.each_with_index do |thread, i|
    thread.name = "rbtrace-#{i}" if thread.respond_to?(:name=)
    state = {"sleep" => 1, "sleep_forever" => 2}[thread.inspect[/ (\w+)>\z/, 1]] || 0
    tid = thread.respond_to?(:native_thread_id) ? thread.native_thread_id : 0
    $stdout.puts "thread #{i} #{state} #{tid}"
    given("thread_#{i}", thread)
  end
  fibers.each { |name, fiber| given("fiber_" + name, fiber) }
  given("ractor", Ractor.current) if defined?(Ractor)
  address = Kernel.instance_method(:to_s).bind(GIVEN).call[/0x(\h+)/, 1]
  $stdout.puts "names #{NAMES.join(",")}"
  $stdout.puts "ready #{address}"
  nil while true
end
sleep
"""
