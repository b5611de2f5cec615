# frozen_string_literal: true

require "io/wait"
require "test_helper"
require "support/agent_target"

# Call trees of known programs, read from the ring.
class AgentCallsTest < Minitest::Test
  include TestHelper
  include AgentHelper

  # Check one tree in several ways: with Ruby's own answers for class and method, and with
  # offsets; with a threshold of one nanosecond, which makes every call slow; and as a table.
  def assert_tree(expected, program, **arming)
    target = target(program)
    client = connect(target)
    assert_equal [expected], seen(client, target, mode: "ring", **arming)
    assert_equal 0, @status["orphans"] + @status["abandoned"]
    assert_equal [expected], seen(client, target, mode: "ring", offsets: OFFSETS, **arming)
    assert_equal [expected], seen(client, target, mode: "slow", threshold_ns: 1, offsets: OFFSETS, **arming)
    memory = client.arm(mode: "table", offsets: OFFSETS, **arming)
    target.step
    counts = counted(memory, names_of(client))
    assert_equal expected.lines.map(&:strip).tally, counts
    assert_equal [0] * 3, client.call("disarm").values_at("orphans", "abandoned", "conditions")
    target
  end

  # Check that each method has as many entries as returns. Sum up methods of the same name.
  def counted(memory, names)
    names.each_with_object({}) do |(index, name), found|
      record = memory.method_record(index)
      next unless record[:entries].positive?

      assert_equal record[:entries], record[:calls]
      assert_equal record[:calls], memory.histogram(index).values.sum
      found[name] = found.fetch(name, 0) + record[:entries]
    end
  end

  def test_recursion
    assert_tree <<~TREE, <<~RUBY
      Object#fib
        Object#fib
          Object#fib
          Object#fib
        Object#fib
    TREE
      def fib(n); n < 2 ? n : fib(n - 1) + fib(n - 2); end
      STEP = -> { fib(3) }
    RUBY
  end

  def test_exceptions
    assert_tree <<~TREE, <<~RUBY
      Object#rescuing
        Object#middle
          Object#raising
        Object#after
      Object#ensuring
        Object#thrower
        Object#after
      Object#after
    TREE
      def after; end
      def raising; raise "x"; end
      def middle; raising; after; end
      def rescuing; middle; rescue RuntimeError; after; end
      def thrower; throw :out; end
      def ensuring; thrower; ensure after; end
      STEP = -> { rescuing; catch(:out) { ensuring }; after }
    RUBY
  end

  def test_returns_and_breaks_from_blocks
    assert_tree <<~TREE, <<~RUBY
      Object#breaking
        Object#yielding
          Object#leaf
        Object#leaf
      Object#returning
        Object#yielding
          Object#leaf
      Object#nexting
        Object#yielding
        Object#leaf
    TREE
      def leaf; end
      def yielding; yield; yield; end
      def breaking; yielding { leaf; break }; leaf; end
      def returning; yielding { leaf; return 1 }; leaf; end
      def nexting; yielding { next }; leaf; end
      STEP = -> { breaking; returning; nexting }
    RUBY
  end

  def test_define_method
    assert_tree <<~TREE, <<~RUBY
      Made#outer
        Made#inner
        Made#plain
          Made#inner
      Made#raises
        Made#inner
      Made#plain
        Made#inner
    TREE
      class Made
        define_method(:inner) { |n = 1| n }
        def plain; inner; end
        define_method(:outer) { inner; plain }
        define_method(:raises) { inner; raise "x" }
      end
      made = Made.new
      STEP = -> { made.outer; begin; made.raises; rescue RuntimeError; end; made.plain }
    RUBY
  end

  def test_method_missing_and_respond_to_missing
    assert_tree <<~TREE, <<~RUBY
      Ghost#method_missing
        Ghost#real
      Ghost#respond_to_missing?
    TREE
      class Ghost
        def real; end
        def method_missing(name, *); name == :gone ? real : super; end
        def respond_to_missing?(name, all = false); name == :gone || super; end
      end
      ghost = Ghost.new
      STEP = -> { ghost.gone; ghost.respond_to?(:gone) }
    RUBY
  end

  def test_refinements
    assert_tree <<~TREE, <<~RUBY
      Shouting::User.run
        #<refinement:String@Shouting>#shout
          Object#leaf
    TREE
      def leaf; end
      module Shouting
        refine(String) { def shout; leaf; upcase; end }
        using self
        module User; def self.run; "a".shout; end; end
      end
      STEP = -> { Shouting::User.run }
    RUBY
  end

  def test_modules_singletons_aliases_and_super
    assert_tree <<~TREE, <<~RUBY
      Child#hello
        Mixed#hello
          Parent#hello
      Child.create
        Child.create
          Child.create
      Parent.create
        Parent.create
      Late.create
        Late.create
      Tools.help
      #<Object:0x…>.own
      Child#hello
        Mixed#hello
          Parent#hello
      Space::Deep#work
    TREE
      class Grand; def self.create; end; end
      class Parent < Grand; def hello; end; def self.create; super; end; end
      class Late < Parent; end
      module Mixed; def hello; super; end; end
      class Child < Parent
        include Mixed
        def hello; super; end
        alias hi hello
        class << self; def create; super; end; end
      end
      module Tools; def self.help; end; end
      module Space; class Deep; def work; end; end; end
      object = Object.new
      def object.own; end
      child, deep = Child.new, Space::Deep.new
      STEP = -> { child.hello; Child.create; Parent.create; Late.create; Tools.help; object.own; child.hi; deep.work }
    RUBY
  end

  # Selected by the class that they are called on, and by the class that defines them.
  def test_selection_of_inherited_class_methods
    target = target(<<~RUBY)
      class Base; def self.make; end; end
      class One < Base; end
      class Two < Base; define_singleton_method(:other) {}; end
      STEP = -> { Base.make; One.make; Two.make; Two.other; Class.new(One).make }
    RUBY
    client = connect(target)
    { "One" => ["One.make"], "Two" => ["Two.make", "Two.other"], "Base" => ["Base.make", "One.make", "Two.make", "#<Class:0x….make"] }
      .each do |owner, calls|
        found = seen(client, target, mode: "ring", offsets: OFFSETS, select: [{ owner: owner, kind: "singleton", name: nil }])
        assert_equal calls, (found.flat_map { |text| text.gsub(/0x\h+>/, "0x…").lines.map(&:strip) })
      end
  end

  def test_procs_methods_and_send
    assert_tree <<~TREE, <<~RUBY
      Object#by_method
        Object#leaf
      Object#leaf
      Object#leaf
      Object#in_eval
    TREE
      def leaf; end
      def by_method; method(:leaf).call; end
      def in_eval; end
      STEP = -> { by_method; send(:leaf); method(:leaf).to_proc.call; eval("in_eval") }
    RUBY
  end

  def test_c_methods_on_request
    program = <<~RUBY
      def work; { 3 => 0, 1 => 0 }.sort_by { |x, _| neg(x) }; end
      def neg(x); Integer.sqrt(x); end
      def failing; Integer.sqrt("x"); rescue TypeError; leaf; end
      def leaf; end
      STEP = -> { work; failing }
    RUBY
    assert_tree "Object#work\n  Object#neg\n  Object#neg\nObject#failing\n  Object#leaf\n", program
    text = trees(program, c_calls: true).first.gsub(/^ *(Kernel|IO|Exception|TypeError|Class|Module)\b.*\n/, "")
    wanted = <<~TREE
      Object#work
        Enumerable#sort_by
          Hash#each
            Object#neg
              Integer.sqrt
            Object#neg
              Integer.sqrt
      Object#failing
        Integer.sqrt
        Object#leaf
    TREE
    assert_includes text, wanted
    assert_equal 0, @status["abandoned"]
  end

  def test_deep_recursion
    found = trees("def deep(n); deep(n - 1) if n > 0; end\nSTEP = -> { deep(5000) }", ring_records: 16_384).first
    assert_equal 5001, found.lines.size
  end

  def test_ten_threads
    program = <<~RUBY
      def leaf(n); end
      def inner(n); leaf(n); end
      def outer(n); 50.times { inner(n) }; sleep 0.001; inner(n); end
      STEP = -> { Array.new(10) { |i| Thread.new { outer(i) } }.each(&:join) }
    RUBY
    expected = "Object#outer\n#{"  Object#inner\n    Object#leaf\n" * 51}"
    assert_equal [expected] * 10, trees(program)
    assert_equal [expected] * 10, trees(program, offsets: OFFSETS)
  end

  def test_fibers
    program = <<~RUBY
      def leaf; end
      def produce; leaf; Fiber.yield(1); leaf; Fiber.yield(2); leaf; end
      def consume
        fibers = Array.new(3) { Fiber.new { produce } }
        3.times { fibers.each { |fiber| fiber.resume; leaf } }
      end
      STEP = -> { consume }
    RUBY
    fiber = "Object#produce\n#{"  Object#leaf\n" * 3}"
    assert_equal ["Object#consume\n#{"  Object#leaf\n" * 9}", fiber, fiber, fiber], trees(program)
  end

  # A fiber's memory is reused before long. Calls left open in a discarded fiber must not
  # become parents.
  def test_many_fibers_in_few_streams
    program = <<~RUBY
      def leaf; end
      def endless; loop { leaf; Fiber.yield }; end
      def once; leaf; end
      def dropped; fiber = Fiber.new { endless }; fiber.resume; nil; end
      STEP = -> { 300.times { |i| dropped; Fiber.new { once }.resume; GC.start if i % 50 == 0 } }
    RUBY
    target = target(program)
    client = connect(target)
    memory = client.arm(mode: "ring", max_streams: 4)
    target.step
    names = names_of(client)
    calls = memory.read_all.flatten.select { |record| record.kind == :entry }
    calls.select! { |record| names[record.method] }
    tally = calls.group_by { |record| names[record.method] }.transform_values(&:size)
    assert_equal({ "Object#dropped" => 300, "Object#endless" => 300, "Object#leaf" => 600, "Object#once" => 300 }, tally)
    status = client.call("status")
    assert_equal 0, status["no_stream"]
    assert_operator status["abandoned"], :>=, 296
  end

  # The program pays for the pages of a ring, so consecutive threads and fibers share a few
  # rings.
  def test_rings_of_stacks_that_ended_are_used_again
    program = <<~RUBY
      def leaf; end
      def once; leaf; end
      STEP = -> {
        60.times { Thread.new { once }.join }
        60.times { Thread.new { once; Thread.current.kill }.join }
        fibers = Array.new(60) { Fiber.new { once }.tap(&:resume) }
        once
        fibers.size
      }
    RUBY
    target = target(program)
    client = connect(target)
    memory = client.arm(mode: "ring", offsets: OFFSETS)
    target.step
    calls = memory.read_all.flatten
    names = names_of(client)
    entries = calls.select { |record| record.kind == :entry && names[record.method] }
    assert_equal({ "Object#once" => 181, "Object#leaf" => 181 }, entries.map { |record| names[record.method] }.tally)
    assert_operator memory.streams, :<, 20
    assert_equal [0] * 2, client.call("status").values_at("abandoned", "no_stream")
    assert_operator calls.map { |record| record.kind == :stack ? record.method : 0 }.max, :>, 60
  end

  # A call left open in a discarded fiber is not a parent in the fiber that reuses its memory.
  def test_a_fiber_in_the_place_of_one_that_was_dropped
    target = target(<<~RUBY)
      def old; Fiber.yield; end
      def fresh; end
      def deeper(n)
        n.zero? ? 40.times { Fiber.new { old }.resume } : deeper(n - 1)
        nil
      end
      one = { 1 => 1 } # Hash#each is written in C, even if YJIT has Array#each in Ruby
      STEP = -> {
        6.times do
          deeper(30)
          GC.start
          Array.new(40) { Fiber.new { one.each { one.each { fresh } }; Fiber.yield } }.each(&:resume)
        end
      }
    RUBY
    client = connect(target)
    memory = client.arm(mode: "ring", offsets: OFFSETS, ring_records: 4096, max_streams: 1024)
    target.step
    names = names_of(client)
    depths = memory.read_all.flatten.select { |record| record.kind == :entry && names[record.method] == "Object#fresh" }.map(&:depth)
    assert_equal({ 0 => 240 }, depths.tally)
  end

  def test_ractors
    skip "no ractors before 3.0" if RUBY_VERSION < "3.0"
    program = <<~RUBY
      Warning[:experimental] = false
      def leaf; end
      def outside; leaf; end
      STEP = -> {
        ractor = Ractor.new { 200.times { outside }; Ractor.receive }
        100.times { outside }
        ractor.send(nil)
        ractor.respond_to?(:value) ? ractor.value : ractor.take
      }
    RUBY
    found = trees(program)
    # Hooks belong to one Ractor: the main one's calls are recorded, exactly.
    assert_equal ["Object#outside\n  Object#leaf\n" * 100], found.map { |text| text.gsub(/^ *(Ractor|Warning|Kernel).*\n/, "") }
    assert_equal 64, @status["conditions"] & 64
  end

  def test_selection
    program = <<~RUBY
      class First; def work; other; end; def other; end; def self.work; end; end
      class Second; def work; end; end
      STEP = -> {
        First.new.work; First.work; Second.new.work
        eval("class Later; def work; end; end") unless defined?(Later)
        Later.new.work
      }
    RUBY
    select = lambda { |*selectors| trees(program, select: selectors, offsets: OFFSETS).first.to_s.split("\n") }
    assert_equal %w[First#work], select[{ owner: "First", kind: "instance", name: "work" }]
    assert_equal %w[First.work], select[{ owner: "First", kind: "singleton", name: nil }]
    assert_equal %w[First#work First.work Second#work Later#work], select[{ owner: nil, kind: nil, name: "work" }]
    assert_equal ["First#work", "  First#other", "First.work", "Later#work"],
                 select[{ owner: "First", kind: nil, name: nil }, { owner: "Later", kind: nil, name: nil }]
    assert_empty select[{ owner: "Firs", kind: nil, name: nil }, { owner: "First2", kind: nil, name: nil }]
  end

  # A read that differs from Ruby's answer disarms the hook. The program continues.
  def test_wrong_offsets_disarm
    target = target("def leaf; end\nSTEP = -> { leaf; leaf }")
    client = connect(target)
    { def_original_id: 24, me_owner: 24, ment_imemo: 3 }.each do |name, value|
      assert_empty seen(client, target, mode: "ring", offsets: OFFSETS.merge(name => value))
      assert_equal [2, 1, 4], @status.values_at("state", "conditions", "mismatch"), name
    end
    assert_equal ["Object#leaf\nObject#leaf\n"], seen(client, target, mode: "ring", offsets: OFFSETS)
    assert_equal [0, 0], @status.values_at("conditions", "mismatch")
  end

  # An event or a self that differs from the answers of Ruby's functions does the same.
  def test_another_answer_of_ruby_disarms
    { "unsigned int rb_tracearg_event_flag" => 1, "unsigned long rb_tracearg_self" => 2 }.each do |function, mismatch|
      assert_disarms_with("#{function}(void *arg) { (void)arg; return 0; }\n", mismatch)
    end
  end

  # So does a control frame outside the VM stack of its execution context.
  def test_a_frame_outside_of_the_stack_disarms
    assert_disarms_with(<<~C, 3)
      #define _GNU_SOURCE
      #include <dlfcn.h>
      typedef void (*hook)(unsigned long data, void **arg);
      static hook real;
      static void with_another_frame(unsigned long data, void **arg) {
        void *frame = arg[2];
        arg[2] = &frame;
        real(data, arg);
        arg[2] = frame;
      }
      void rb_add_event_hook2(hook function, unsigned events, unsigned long data, int flags) {
        void (*add)(hook, unsigned, unsigned long, int) = dlsym(RTLD_NEXT, "rb_add_event_hook2");
        real = function;
        add(with_another_frame, events, data, flags);
      }
      int rb_remove_event_hook_with_data(hook function, unsigned long data) {
        int (*remove)(hook, unsigned long) = dlsym(RTLD_NEXT, "rb_remove_event_hook_with_data");
        return remove(function == real ? with_another_frame : function, data);
      }
    C
  end

  def test_a_newer_ruby
    { "4.1.99" => true, "4.2.0" => false, "9.9.0" => false }.each do |version, armed|
      target = target("def leaf; end\nSTEP = -> { leaf }", options: ["-e", "Object.send(:remove_const, :RUBY_VERSION)", "-e",
                                                                     "RUBY_VERSION = #{version.dump}.freeze"])
      client = connect(target)
      if armed
        client.arm(mode: "ring")
      else
        error = assert_raises(AgentClient::Refused) { client.arm(mode: "ring") }
        assert_equal "untested", error.code
        client.arm(mode: "ring", untested: true)
      end
    end
  end

  def test_calls_that_began_before
    target = target(<<~RUBY)
      def leaf; end
      def waiting; puts "inside"; gets; leaf; end
      STEP = -> { waiting; leaf }
    RUBY
    client = connect(target)
    target.begin_step
    assert_equal "inside\n", target.io.gets
    memory = client.arm(mode: "ring")
    target.io.puts
    target.end_step
    names = names_of(client)
    kinds = memory.read_all.first.reject { |r| %i[stack place thread].include?(r.kind) }
                  .map { |record| [names[record.method], record.kind, record.depth, record.flags] }
    leaf = [["Object#leaf", :entry, 0, 0], ["Object#leaf", :return, 0, 0]]
    assert_equal [*leaf, ["Object#waiting", :return, 0, 1], *leaf], kinds
    assert_equal 1, client.call("status")["orphans"]
  end

  # Leave out the agent's methods that run in the program's threads around these.
  def test_a_fork_and_an_evaluation
    program = "def leaf; end\nSTEP = -> { leaf; Process.wait(Process.fork { leaf; exit!(0) }); eval('leaf') }"
    assert_tree "Object#leaf\nObject#leaf\n", program
  end

  def test_the_end
    target = target("def leaf; end\nat_exit { leaf }\nSTEP = -> { leaf; exit }")
    client = connect(target)
    memory = client.arm(mode: "ring")
    target.begin_step
    # Only the program's own calls: Ruby 4.0 ends with a call of Monitor#synchronize.
    ours = client.last_event["methods"].select { |entry| entry["path"] == "-e" }
    names = ours.to_h { |entry| [entry["index"], entry["name"]] }
    entries = memory.read_all.flatten.select { |record| record.kind == :entry }
    assert_equal %w[leaf leaf], entries.map { |record| names[record.method] }.compact
  end

  def test_a_full_ring_counts_what_it_drops
    target = target("def leaf; end\ndef work; i = 0; leaf while (i += 1) <= 1000; end\nSTEP = -> { work }")
    client = connect(target)
    memory = client.arm(mode: "ring", ring_records: 256)
    target.step
    first = memory.read_all.first
    target.step
    second = memory.read_all.first
    # An ENTRY is written only if there is room for its RETURN and a LOST before it.
    [[first, 3], [second, 0]].each do |records, stack|
      inner = records[stack..-3]
      assert_equal [:lost, :return], records.last(2).map(&:kind)
      assert_equal records[stack].method, records.last.method
      assert_equal inner.count { |record| record.kind == :entry } - 1, inner.count { |record| record.kind == :return }
      assert_equal 2002 - inner.size - 1, records[-2].method
      assert_operator records.size, :>, 250
    end
    client.call("disarm")
    assert_equal first[-2].method + second[-2].method, memory.dropped
  end

  TWO_STACKS = <<~RUBY
    def leaf; end
    def other; end
    def busy
      stop = Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID) + 0.06
      500.times { leaf }
      nil while Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID) < stop
    end
    go, gone = Queue.new, Queue.new
    Thread.new { loop { go.pop; 3.times { other }; busy; gone << 1 } }
    STEP = -> { gets == "main\n" ? busy : (go << 1; gone.pop) }
  RUBY

  # A LOST record, the stack, its place, and its thread. They are written together or not at
  # all: a ring that threads take from each other is full if it has room for fewer.
  TOLD_OF_A_STACK = 4

  # The main thread fills the only ring, and then the other thread takes over the stream.
  # Return the ring's contents then, and those after reading it. Repeat if a thread of the
  # agent had the stream.
  def two_stacks_in_a_ring(**arming)
    target = target(TWO_STACKS)
    client = connect(target)
    select = %w[leaf other busy].map { |name| { owner: nil, kind: nil, name: name } }
    eventually do
      memory = client.arm(max_streams: 1, ring_records: 256, select: select, offsets: OFFSETS, **arming)
      step_as("main", target) until memory.u64(memory.u64(128)) > 256 - TOLD_OF_A_STACK
      step_as("other", target)
      before = memory.read(0)
      step_as("other", target)
      after = memory.read(0)
      client.call("disarm")
      [before, after] if after.count { |record| record.kind == :stack } < 2
    end
  end

  def step_as(who, target)
    target.begin_step
    target.io.puts(who)
    target.end_step
  end

  # The owner of calls is announced as soon as there is room, before any of its calls.
  def test_a_full_ring_goes_to_another_stack
    before, after = two_stacks_in_a_ring(mode: "ring")
    assert_equal [:lost, :stack, :place, :thread, *%i[entry return] * 3, :entry], after.first(11).map(&:kind)
    assert_equal [0, 0, 0, 0], after.values_at(4, 6, 8, 10).map(&:depth)
    refute_includes before.select { |record| record.kind == :stack }.map(&:method), after[1].method
  end

  # The owner is not announced for calls that are taken back.
  def test_a_full_ring_of_slow_calls_goes_to_another_stack
    _, after = two_stacks_in_a_ring(mode: "slow", cpu: true, whole: true, threshold_ns: 50_000_000)
    assert_equal %i[lost stack place thread entry entry return cpu], after.first(8).map(&:kind)
    assert_equal [0, 1], after.values_at(4, 5).map(&:depth)
  end

  # They run every 50 ms, and would make the program lose its calls each time.
  def test_the_agents_threads_take_no_stream_from_the_program
    target = target(<<~RUBY)
      def waits; puts "waits"; gets; leaf; end
      def leaf; end
      STEP = -> { waits }
    RUBY
    client = connect(target)
    memory = client.arm(mode: "ring", max_streams: 1, offsets: OFFSETS)
    target.begin_step
    assert_equal "waits\n", target.io.gets
    client.call("status")
    connect(target).close # starts and ends threads of the agent
    target.step
    names = names_of(client)
    found = memory.read_all.flatten.map { |record| [record.kind, names[record.method]] }
    found.select! { |kind, name| %i[entry return].include?(kind) && name.to_s.start_with?("Object#") }
    assert_equal [[:entry, "Object#waits"], [:entry, "Object#leaf"], [:return, "Object#leaf"], [:return, "Object#waits"]], found
    assert_equal [0, 0], client.call("disarm").values_at("abandoned", "orphans")
  end

  BODIES = { "a" => %w[b c], "b" => %w[d c], "c" => %w[d], "d" => %w[a] }.freeze

  # Append the expected records of a(n) in the program below.
  def events_of(name, number, depth, found)
    found << [:entry, "Object##{name}", depth]
    BODIES[name].each do |callee|
      events_of(callee, callee == "a" ? number - 1 : number, depth + 1, found) unless callee == "a" && number.zero?
    end
    found << [:return, "Object##{name}", depth]
  end

  # With a reader that is too slow, every record is still the right one, and every loss
  # says exactly how many are missing.
  def test_losses_are_exact_and_nesting_recovers
    target = target(<<~RUBY)
      def a(n); b(n); c(n); end
      def b(n); d(n); c(n); end
      def c(n); d(n); end
      def d(n); a(n - 1) if n > 0; end
      STEP = -> { a(5); a(5) }
    RUBY
    client = connect(target)
    memory = client.arm(mode: "ring", ring_records: 256, offsets: OFFSETS)
    streams = Hash.new { |found, stream| found[stream] = [] }
    look = -> { memory.streams.times { |stream| streams[stream].concat(memory.read(stream)) } }
    # Without a reader in the meantime, some records are lost.
    target.step
    4.times do
      look.call
      target.begin_step
      look.call until target.io.wait_readable(0)
      target.end_step
    end
    look.call
    names = names_of(client)
    client.call("disarm")
    records = streams.values.max_by(&:size).reject { |record| %i[stack place thread].include?(record.kind) }
    expected = Array.new(10) { events_of("a", 5, 0, []) }.flatten(1)
    records.each do |record|
      next expected.shift(record.method) if record.kind == :lost

      assert_equal expected.shift, [record.kind, names[record.method], record.depth]
    end
    lost = records.select { |record| record.kind == :lost }
    refute_empty lost
    assert_equal memory.dropped, lost.sum(&:method) + expected.size
  end

  def test_gc_raise_and_objects
    target = target(<<~RUBY)
      class Mine; end
      class Oops < StandardError; end
      def work; Mine.new; Mine.new; begin; raise Oops; rescue Oops; end; GC.start; end
      STEP = -> { work }
    RUBY
    client = connect(target)
    memory = client.arm(mode: "ring", gc: true, raise: true, objects: true)
    target.step
    names = names_of(client)
    records = memory.read_all.flatten
    of = ->(kind) { records.select { |record| record.kind == kind } }
    assert_equal ["Oops#"], of[:raise].map { |record| names[record.method] }
    assert_equal 2, (of[:object].count { |record| names[record.method] == "Mine#" })
    assert_operator of[:gc_begin].size, :>=, 1
    assert_equal of[:gc_begin].size, of[:gc_end].size
    assert_equal %i[entry return], (records.select { |r| names[r.method] == "Object#work" }.map(&:kind))
  end

  # Without a tracer, the probes are skipped, and everything else works as without them.
  def test_static_probes_and_the_empty_hook
    program = "class Oops < StandardError; end\ndef leaf; raise Oops; rescue Oops; GC.start; end\nSTEP = -> { leaf }"
    target = target(program)
    client = connect(target)
    all = { gc: true, raise: true, objects: true, sites: true }
    assert_equal ["Object#leaf\n"], seen(client, target, mode: "ring", **all)
    %w[sites empty].each do |mode|
      memory = client.arm(mode: mode, **all)
      target.step
      assert_empty memory.read_all
      assert_equal [2, 0], client.call("disarm").values_at("state", "conditions")
    end
  end

  def test_slow_calls_only
    program = <<~RUBY
      def fast; end
      def slow; fast; sleep 0.4; fast; end
      def around; fast; 3.times { fast }; slow; fast; end
      STEP = -> { 500.times { fast }; around; fast }
    RUBY
    slow = "Object#around\n  Object#slow\n"
    assert_equal [slow], trees(program, mode: "slow", threshold_ns: 300_000_000, ring_records: 256)
    assert_equal 0, @status["orphans"]
    whole = "Object#around\n#{"  Object#fast\n" * 4}  Object#slow\n#{"    Object#fast\n" * 2}  Object#fast\n"
    assert_equal [whole], trees(program, mode: "slow", threshold_ns: 300_000_000, whole: true)
    assert_empty trees(program, mode: "slow", threshold_ns: 300_000_000, cpu: true)
  end

  # Only the collection of a fast call is kept, and only if an enclosing call may be slow.
  def test_collections_in_fast_calls_of_a_slow_one
    target = target(<<~RUBY)
      def collects; GC.start; end
      def around; collects; end
      def slow; around; collects; sleep 0.4; end
      STEP = -> { slow; collects }
    RUBY
    client = connect(target)
    memory = client.arm(mode: "slow", threshold_ns: 300_000_000, gc: true)
    target.step
    names = names_of(client)
    records = memory.read_all.find { |found| found.any? { |record| names[record.method] == "Object#slow" } }
    first, last = records.each_index.select { |index| %i[entry return].include?(records[index].kind) }
    assert_equal %w[Object#slow] * 2, (records.values_at(first, last).map { |record| names[record.method] })
    inside = records[first + 1...last]
    assert_equal %i[gc_begin gc_end] * (inside.size / 2), inside.map(&:kind)
    assert_operator inside.size, :>=, 4
    assert_equal [1], inside.map(&:depth).uniq
    assert_equal inside.map(&:time).sort, inside.map(&:time)
    assert_equal 0, memory.dropped
  end

  # A call that never returns must not hold back slow calls inside it.
  def test_slow_calls_are_published_before_the_outermost_returns
    target = target("def slow; sleep 0.02; end\ndef main; slow; puts 'inside'; gets; end\nSTEP = -> { main }")
    client = connect(target)
    memory = client.arm(mode: "slow", threshold_ns: 10_000_000)
    target.begin_step
    assert_equal "inside\n", target.io.gets
    assert_equal %i[entry entry return], (memory.read_all.first.map(&:kind) - %i[stack place thread])
    target.io.puts
    target.end_step
    assert_equal %i[return], memory.read_all.first.map(&:kind)
  end

  def test_slow_by_cpu_time
    program = <<~RUBY
      def sleeping; sleep 0.1; end
      def busy; stop = Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID) + 0.06
        nil while Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID) < stop; end
      STEP = -> { sleeping; busy }
    RUBY
    target = target(program)
    client = connect(target)
    memory = client.arm(mode: "slow", threshold_ns: 50_000_000, cpu: true)
    target.step
    records = memory.read_all.first.reject { |r| %i[stack place thread].include?(r.kind) }
    assert_equal %i[entry return cpu], records.map(&:kind)
    assert_equal "Object#busy", names_of(client)[records[0].method]
    assert_includes 55_000_000..90_000_000, records[2].time
  end

  private

  # Preload a library whose functions replace Ruby's.
  def assert_disarms_with(library, mismatch)
    Dir.mktmpdir do |dir|
      File.write("#{dir}/other.c", library)
      assert system("cc", "-shared", "-fPIC", "-o", "#{dir}/other.so", "#{dir}/other.c")
      target = target("def leaf; end\nSTEP = -> { leaf; leaf }", env: { "LD_PRELOAD" => "#{dir}/other.so" })
      assert_empty seen(connect(target), target, mode: "ring", offsets: OFFSETS)
      assert_equal [2, 1, mismatch], @status.values_at("state", "conditions", "mismatch"), library
    end
  end
end
