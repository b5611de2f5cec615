# frozen_string_literal: true

require "test_helper"
require "support/agent_target"

# The hook's own counts.
class AgentTableTest < Minitest::Test
  include TestHelper
  include AgentHelper

  # By name of method what the table has of it after one step, disarmed.
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

  # Without histograms there are no times, and returns are not hooked.
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

  # Times of calls of some milliseconds agree with the program's own clock, if nobody
  # takes its processor away between the two.
  def test_times
    agrees = Array.new(10).any? do
      table(NAPS) do |memory, indexes, _, client|
        took = client.call("eval", code: "$took")["value"].to_i
        records = indexes.transform_values { |index| memory.method_record(index) }
        assert_times(memory, records, took)
        assert_histogram(memory, indexes["Object#nap"], records["Object#nap"])
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
    assert_operator memory.ns(nap[:total]), :>=, took * 0.999 # two scales of one clock
    assert_operator nest[:sum], :>, 2 * nest[:total] # 5 + 4 + 3 + 2 + 1 naps
  end

  def assert_histogram(memory, index, record)
    histogram = memory.histogram(index)
    assert_equal 5, histogram.values.sum
    least = histogram.sum { |bucket, count| lowest(bucket) * count }
    most = histogram.sum { |bucket, count| lowest(bucket + 1) * count }
    assert_includes least..most, memory.ns(record[:sum])
  end

  # As HdrHistogram has it: the lowest value of a bucket.
  def lowest(bucket)
    return bucket if bucket < 2048

    (bucket - (((bucket >> 10) - 1) << 10)) << ((bucket >> 10) - 1)
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

  # Classes that were seen are neither freed nor moved while something is armed.
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
