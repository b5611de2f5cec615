# frozen_string_literal: true

require "test_helper"
require "support/agent_target"

# Counts and times that the hook keeps.
class AgentTableTest < Minitest::Test
  include TestHelper
  include AgentHelper

  # Run one step, disarm, and yield the table and the methods' numbers by name.
  def table(program, **arming)
    target = target(program)
    client = connect(target)
    memory = client.arm(mode: "table", **arming)
    target.step
    names = names_of(client)
    status = client.call("disarm")
    yield memory, names.invert, status, client
  end

  def test_counts_of_recursion_and_exceptions
    table(<<~RUBY) do |memory, indexes, status|
      def fib(n); n < 2 ? n : fib(n - 1) + fib(n - 2); end
      def fails; raise "x"; end
      def tries; fails; rescue RuntimeError; fib(3); end
      def work; i = 0; tries while (i += 1) <= 1000; end
      STEP = -> { fib(15); work }
    RUBY
      calls = ->(name) { memory.method_record(indexes.fetch("Object##{name}")).values_at(:entries, :calls) }
      assert_equal [1973 + 5000] * 2, calls["fib"]
      assert_equal [1000] * 2, calls["fails"]
      assert_equal [1000] * 2, calls["tries"]
      assert_equal [1] * 2, calls["work"]
      assert_equal 2, memory.state
      assert_equal [0] * 6, status.values_at("no_stream", "no_method", "too_deep", "orphans", "abandoned", "no_block")
      indexes.each_value { |i| assert_equal memory.method_record(i)[:calls], memory.histogram(i).values.sum }
    end
  end

  # Without histograms, the hook neither measures times nor hooks returns.
  def test_entries_alone
    table(<<~RUBY, histograms: false, raise: true) do |memory, indexes, status|
      class Oops < StandardError; end
      def fib(n); n < 2 ? n : fib(n - 1) + fib(n - 2); end
      def fails; raise Oops; end
      def tries; fails; rescue Oops; fib(3); end
      def work; i = 0; tries while (i += 1) <= 1000; Thread.new { fib(10) }.join; Fiber.new { fib(10) }.resume; end
      STEP = -> { fib(15); work }
    RUBY
      record = ->(name) { memory.method_record(indexes.fetch(name)) }
      expected = { "Object#fib" => 1973 + 5000 + (2 * 177), "Object#fails" => 1000, "Object#work" => 1, "Oops#" => 1000 }
      assert_equal(expected, expected.to_h { |name, _| [name, record[name][:entries]] })
      assert_equal [0] * 4, record["Object#fib"].values_at(:calls, :total, :sum, :max)
      assert_equal [0] * 6, status.values_at("no_stream", "no_method", "too_deep", "orphans", "abandoned", "no_block")
    end
  end

  NAPS = <<~RUBY
    def now; Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond); end
    def nap; before = now; sleep 0.004; $took += now - before; end
    def nest(n); nap; nest(n - 1) if n > 0; end
    def work; nest(4); end
    STEP = -> { $took = 0; work }
  RUBY

  # The times of calls of some milliseconds agree with the program's own clock, unless it is
  # preempted between the two.
  def test_times
    assert_agreement(2)
    assert_agreement(3)
  end

  def assert_agreement(digits)
    agrees = Array.new(10).any? do
      table(NAPS, digits: digits) do |memory, indexes, _, client|
        took = client.call("eval", code: "$took")["value"].to_i
        records = indexes.transform_values { |index| memory.method_record(index) }
        assert_times(memory, records, took)
        assert_histogram(memory, indexes["Object#nap"], records["Object#nap"], digits)
        memory.ns(records["Object#nap"][:total]) < took * 1.05
      end
    end
    assert agrees
  end

  def assert_times(memory, records, took)
    work, nest, nap, now = records.values_at("Object#work", "Object#nest", "Object#nap", "Object#now")
    assert_equal work[:total], [work, nest, nap, now].sum { |record| record[:self] }
    assert_equal work[:total] - work[:self], nest[:total]
    assert_equal nest[:total], nest[:max]
    assert_equal [nest[:total] - nest[:self], nap[:sum]], [nap[:total]] * 2
    assert_operator memory.ns(nap[:total]), :>=, took * 0.999 # one clock, two scales
    assert_operator nest[:sum], :>, nest[:total] # the outer call has five naps, the next four, and so on
  end

  def assert_histogram(memory, index, record, digits)
    histogram = memory.histogram(index)
    assert_equal 5, histogram.values.sum
    least = histogram.sum { |bucket, count| lowest(bucket, digits) * count }
    most = histogram.sum { |bucket, count| lowest(bucket + 1, digits) * count }
    assert_includes least..most, memory.ns(record[:sum])
    assert_operator most - least, :<=, least / (10**digits) * 2
  end

  # Return the lowest value of a bucket, by HdrHistogram's rules.
  def lowest(bucket, digits)
    bits = { 2 => 7, 3 => 10 }.fetch(digits)
    shift = [(bucket >> bits) - 1, 0].max
    (bucket - (shift << bits)) << shift
  end

  # A counter has 8 bits and continues in another block. On a busy machine, the times of
  # these calls spread over many counters.
  def test_more_calls_than_a_counter_holds
    table(<<~RUBY) do |memory, indexes, status|
      def leaf; end
      def work; i = 0; leaf while (i += 1) <= 4_000_000; end
      STEP = -> { work }
    RUBY
      histogram = memory.histogram(indexes.fetch("Object#leaf"))
      assert_equal [4_000_000, 0], [histogram.values.sum, status["no_block"]]
      assert_operator histogram.values.max, :>=, 1 << 16
    end
  end

  MANY = <<~RUBY
    NAMES = Array.new(10_000) { |i| "m\#{i}" }
    100.times do |i|
      own = NAMES[i * 100, 100].map { |name| "def self.\#{name}(n); while (n -= 1) > 0; end; end" }
      eval("class Many\#{i}; \#{own.join(";")}; end")
    end
    CALLS = Array.new(100) { |i| eval("-> (n) { " + NAMES[i * 100, 100].map { |name| "Many\#{i}.\#{name}(n)" }.join(";") + " }") }
    STEP = -> { 5.times { [1, 3, 10, 30, 100, 300, 1000].each { |n| CALLS.each { |calls| calls.call(n) } } } }
  RUBY

  # Each call takes from 100 ns to 50 µs or more. The histograms take less than 32 MB of memory.
  def test_ten_thousand_methods
    target = target(MANY)
    target.step
    client = connect(target)
    before = private_kb(target)
    memory = client.arm(mode: "table")
    target.step
    target.step
    used = (private_kb(target) - before) / 1024.0
    assert_operator used, :>, memory.data.stat.blocks / 2048.0
    counters = client.call("disarm").values_at("no_method", "no_block", "abandoned")
    assert_equal [0] * 3, counters
    assert_equal 10_000 * 70, assert_each(memory, 70)
    assert_operator used, :<, 32
  end

  # Check that every record and its histogram agree; return the calls of methods with
  # this many each.
  def assert_each(memory, times)
    counts = (1...memory.methods_seen).map { |i| memory.method_record(i)[:calls] }
    sums = memory.histograms.transform_values { |buckets| buckets.values.sum }
    assert_equal(counts, (1...memory.methods_seen).map { |i| sums.fetch(i, 0) })
    counts.count(times) * times
  end

  # Return the process's own memory, including shared memory that only it has mapped.
  def private_kb(target)
    File.read("/proc/#{target.pid}/smaps_rollup")[/^Private_Dirty: +(\d+)/, 1].to_i
  end

  def test_threads_and_fibers_add_up
    table(<<~RUBY) do |memory, indexes, status|
      def leaf; end
      def work(n); i = 0; leaf while (i += 1) <= n; end
      STEP = -> {
        Array.new(10) { Thread.new { 20.times { Fiber.new { work(50) }.resume } } }.each(&:join)
      }
    RUBY
      assert_equal 10 * 20 * 50, memory.method_record(indexes.fetch("Object#leaf"))[:calls]
      assert_equal 10 * 20, memory.method_record(indexes.fetch("Object#work"))[:calls]
      assert_equal 0, status["abandoned"]
    end
  end

  def test_fibers_that_are_dropped
    table(<<~RUBY, max_streams: 4) do |memory, indexes, status|
      def leaf; end
      def endless; loop { leaf; Fiber.yield }; end
      def once; leaf; end
      def dropped; fiber = Fiber.new { endless }; fiber.resume; nil; end
      STEP = -> { i = 0; (dropped; Fiber.new { once }.resume) while (i += 1) <= 300; GC.start }
    RUBY
      counts = %w[dropped endless leaf once].map { |name| memory.method_record(indexes["Object##{name}"]).values_at(:entries, :calls) }
      assert_equal [[300, 300], [300, 0], [600, 600], [300, 300]], counts
      assert_operator status["abandoned"], :>=, 296
    end
  end

  def test_what_does_not_fit_is_said
    table(<<~RUBY, max_methods: 16, max_blocks: 16) do |memory, _, status|
      50.times { |i| eval("def m\#{i}; end") }
      CALLS = eval("-> { " + Array.new(50) { |i| "m\#{i}" }.join(";") + " }")
      STEP = -> { i = 0; CALLS.call while (i += 1) <= 100 }
    RUBY
      assert_equal 16, status["methods"]
      assert_equal 2, status["conditions"] & 2
      assert_operator status["no_method"], :>=, 35 * 100
      assert_equal status["no_method"], memory.method_record(0)[:calls]
      counted = (0...16).sum { |i| memory.histogram(i).values.sum }
      assert_equal (0...16).sum { |i| memory.method_record(i)[:calls] }, counted + status["no_block"]
    end
  end

  def test_allocations_raises_and_gc
    table(<<~RUBY, gc: true, raise: true, objects: true, methods: false) do |memory, indexes|
      class Mine; end
      class Oops < StandardError; end
      def work; i = 0; Mine.new while (i += 1) <= 500; begin; raise Oops; rescue Oops; end; GC.start; GC.start; end
      STEP = -> { work }
    RUBY
      kinds = (1...memory.methods_seen).to_h { |i| [i, memory.method_record(i)[:kind]] }
      entries = ->(index) { memory.method_record(index)[:entries] }
      assert_equal 500, entries[indexes.fetch("Mine#")]
      raises = kinds.select { |_, kind| kind == 4 }.keys
      assert_equal 1, raises.sum(&entries)
      gc = memory.method_record(kinds.key(3))
      assert_operator gc[:calls], :>=, 2
      assert_equal gc[:calls], gc[:entries]
      assert_operator gc[:total], :>, 0
    end
  end

  # While something is armed, classes that the hook has seen are neither freed nor moved.
  def test_names_survive_the_collector
    table(<<~RUBY) do |memory, indexes|
      def make(i); klass = Class.new { def work; end }; Object.const_set("Gone\#{i}", klass); klass.new.work
        Object.send(:remove_const, "Gone\#{i}"); end
      STEP = -> {
        20.times { |i| make(i) }
        3.times { GC.start; GC.compact if GC.respond_to?(:compact) }
      }
    RUBY
      assert_equal Array.new(20) { |i| "Gone#{i}#work" }.sort, indexes.keys.grep(/Gone/).sort
      assert_equal 20, indexes.keys.grep(/Gone/).sum { |name| memory.method_record(indexes[name])[:calls] }
    end
  end
end
