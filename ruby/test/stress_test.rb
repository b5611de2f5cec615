# frozen_string_literal: true

require "test_helper"

# Each test runs in a separate process, so that a crash is an ordinary failure.
class StressTest < Minitest::Test
  def setup
    needs_native
    skip TappedSite.why_not if TappedSite.why_not
  end

  PRELUDE = <<~RUBY
    require "tracepoint"
    require "#{File.expand_path("support/tapped_site", __dir__)}"
    REGISTRY = Tracepoint.module_eval("Registry")
    def tap(entry)
      REGISTRY.sites(entry).map { |address| TappedSite.new(address) }
    end
  RUBY

  def test_collecting_at_every_allocation
    assert_equal "ok\n", ruby(<<~RUBY)
      #{PRELUDE}
      TEXT = "kept, as the tap reads it later"
      texts = Object.new
      def texts.to_s
        Array.new(5) { |i| "x" * i }
        TEXT
      end
      GC.stress = true
      probe = Tracepoint.define(:one, {id: Integer, sku: String, sym: Symbol, f: Float, ok: :bool}, provider: :stress)
      span = Tracepoint.define_span(:two, {sku: String}, provider: :stress)
      3.times { |i| Tracepoint.define("many_\#{i}", {id: Integer}) }
      GC.stress = false
      one, = tap(probe)
      _, two = tap(span)
      GC.stress = true
      10.times do |i|
        sku = "sku-\#{i}" * 10
        raise "fire" unless probe.fire(2**62 + i, sku, :"dyn_\#{i}", i / 3.0, true)
        raise "block" unless probe.fire { [2**70, "x\#{i}", nil, 2**70, nil] }
        raise "name" unless Tracepoint.fire("stress:one", i, "x".dup, :a, 0.5, nil)
        raise "drop" if probe.fire { raise "x" }
        raise "value" unless span.measure("a" * 100) { "b" * 3 } == "bbb"
        begin
          span.measure("a\\0b") { raise "boom" }
        rescue RuntimeError
        end
        catch(:out) { span.measure("x") { throw :out } }
        Tracepoint.fire("fresh_\#{i}", i, "x", nil, at: Time.at(i), id: nil)
        Tracepoint.fire("fresh_\#{i}", i, "x", i.to_s, id: i / 3.0, at: [i])
        Tracepoint.span("fresh_span_\#{i}", i) { nil }
        begin
          probe.fire(1)
        rescue ArgumentError
        end
      end
      Tracepoint.strict = true
      [["x", "x", :a, 0.5, nil], [1, 2, :a, 0.5, nil], [2**80, "x", :a, 0.5, nil], [1, "\\0", :a, 0.5, nil]].each do |bad|
        begin
          probe.fire(*bad)
          raise "strict"
        rescue TypeError, RangeError, ArgumentError
        end
      end
      Tracepoint.strict = false
      open = Tracepoint.probes.find { |it| it.name == :fresh_1 }
      third, = tap(open)
      raise "undeclared" unless Tracepoint.fire(:fresh_1, 1, [2], texts, id: 0.5, at: texts)
      raise "texts" unless third.value(2, String) == TEXT && third.value(3, String) == TEXT
      GC.stress = false
      raise open.to_s unless open.operands == {arg0: Integer, arg1: String, arg2: String, at: String, id: Float}
      raise "hits" unless one.hits == 30 && two.hits == 30
      Tracepoint.probes.each(&:to_s)
      puts "ok"
    RUBY
  end

  def test_collecting_while_capturing
    assert_equal "ok\n", ruby(<<~RUBY)
      require "tracepoint/testing"
      probe = Tracepoint.define(:one, {id: Integer, sku: String, sym: Symbol, f: Float, ok: :bool})
      span = Tracepoint.define_span(:two, {sku: String}, result: {text: String})
      GC.stress = true
      events = Tracepoint::Testing.capture do
        5.times do |i|
          probe.fire(2**62 + i, "sku-\#{i}" * 10, :"dyn_\#{i}", i / 3.0, nil)
          span.measure("a" * 100) { |it| it[:text] = "\#{i}" * 100 }
          open = span.start("b" * (i + 30))
          open[:text] = "c" * 40
          open.finish
        end
      end
      GC.stress = false
      expected = Array.new(5) do |i|
        [[2**62 + i, "sku-\#{i}" * 10, :"dyn_\#{i}", i / 3.0, nil], ["a" * 100], ["a" * 100, i.to_s * 100],
         ["b" * (i + 30)], ["b" * (i + 30), "c" * 40]]
      end
      got = events.map { |event| event.arguments.values + event.results.values }
      raise got.inspect unless got == expected.flatten(1)
      puts "ok"
    RUBY
  end

  def test_compaction
    skip "no compaction" unless GC.respond_to?(:compact)
    assert_equal "ok\n", ruby(<<~RUBY)
      #{PRELUDE}
      probes = Array.new(200) { |i| Tracepoint.define("c_\#{i}".to_sym, {id: Integer, "op\#{i}": String}) }
      begin
        3.times { GC.compact }
      rescue NotImplementedError
      end
      probes.each_with_index do |probe, i|
        raise "names" unless probe.to_s == "ruby_app:c_\#{i}(id: Integer, op\#{i}: String)"
        raise "fire" if Tracepoint.fire("c_\#{i}".to_sym, 1, "x")
        raise "same" unless Tracepoint.define("c_\#{i}", [Integer, String]).equal?(probe)
      end
      puts "ok"
    RUBY
  end

  def test_threads
    assert_equal "ok\n", ruby(<<~RUBY)
      #{PRELUDE}
      shared, = tap(Tracepoint.define(:shared, {id: Integer}))
      results = Array.new(8) do |t|
        Thread.new do
          Array.new(300) do |i|
            Tracepoint.fire(:shared, i) or raise "fire"
            Tracepoint.fire("each_\#{i}", i)
            Tracepoint.span(:work, i) { Thread.pass if i % 50 == 0; i }
            Tracepoint.define("defined_\#{i}", {id: Integer, sku: String}, provider: "p\#{i % 7}")
          end
        end
      end.map(&:value)
      raise "one probe, one object" unless results.transpose.all? { |same| same.uniq.size == 1 }
      raise "hits \#{shared.hits}" unless shared.hits == 2400
      raise "probes" unless Tracepoint.probes.size == 1 + 300 + 1 + 300
      puts "ok"
    RUBY
  end

  def test_threads_that_disagree
    assert_equal "ok\n", ruby(<<~RUBY)
      #{PRELUDE}
      types = [Integer, String, Float, :bool]
      100.times do |i|
        outcomes = types.map do |type|
          Thread.new do
            Thread.pass
            Tracepoint.define("torn_\#{i}", [type])
          rescue Tracepoint::DefinitionError
            nil
          end
        end.map(&:value)
        raise "one wins" unless outcomes.compact.size == 1
      end
      puts "ok"
    RUBY
  end

  # While a process forks, the locks of the registry and the library are held. A handler
  # registered before theirs runs after them, and a fire that took such a lock would hang.
  def test_a_name_is_found_without_a_lock
    output = ruby(<<~RUBY)
      require "fiddle"
      main = Process.pid
      watchdog = fork { sleep 20; Process.kill(:KILL, main) }
      libc = Fiddle.dlopen(nil)
      fired = nil
      BEFORE = Fiddle::Closure::BlockCaller.new(Fiddle::TYPE_VOID, []) do
        fired = NAMES.map { |name| Tracepoint.fire(name, 1) } +
                [Tracepoint.enabled?("shop:q"), Tracepoint.fire("nobody:knows") { 1 }] rescue fired = $!
      end
      register = Fiddle::Function.new(libc["__register_atfork"], [Fiddle::TYPE_VOIDP] * 4, Fiddle::TYPE_INT)
      register.call(BEFORE, nil, nil, nil)
      #{PRELUDE}
      NAMES = ["x", :x, "shop:q", :"shop:q", "ruby_app:x", :"ruby_app:x"]
      Tracepoint.define(:x, [Integer])
      Tracepoint.define(:q, [Integer], provider: :shop)
      Process.wait(fork { exit!(0) })
      Process.kill(:KILL, watchdog)
      raise fired.inspect unless fired.is_a?(ArgumentError) && fired.message.start_with?("no probe nobody:knows")
      puts "ok"
    RUBY
    assert_equal "ok\n", output
  end

  def test_fork
    assert_equal "ok\n", ruby(<<~RUBY)
      #{PRELUDE}
      before = Tracepoint.define(:before, {id: Integer})
      children = Array.new(3) do |n|
        fork do
          mine = Tracepoint.define("child_\#{n}", {id: Integer})
          one, two = tap(before).first, tap(mine).first
          exit!(1) unless before.fire(1) && mine.fire(2) && one.hits == 1 && two.value(0, Integer) == 2
          grandchild = fork { exit!(Tracepoint.define(:deep).fire ? 1 : 0) }
          Process.wait(grandchild)
          exit!($?.exitstatus)
        end
      end
      after = Tracepoint.define(:after, {id: Integer})
      one, two = tap(before).first, tap(after).first
      raise "parent" unless before.fire(1) && after.fire(1) && one.hits == 1 && two.hits == 1
      children.each { |pid| Process.wait(pid); raise "child" unless $?.success? }
      puts "ok"
    RUBY
  end

  # Both processes share a note: the first one settles an open type.
  def test_fork_while_a_type_is_open
    assert_equal "ok\n", ruby(<<~RUBY)
      #{PRELUDE}
      Tracepoint.fire(:open, nil, nil)
      pid = fork { Tracepoint.fire(:open, 1.5, nil); exit!(0) }
      Process.wait(pid)
      open = Tracepoint.probes.first
      raise "not ours yet" unless open.operands.values == [nil, nil]
      one, = tap(open)
      raise "fire" unless Tracepoint.fire(:open, 2, "x")
      raise open.to_s unless open.operands.values == [Float, String] && one.value(0, Float) == 2.0
      puts "ok"
    RUBY
  end

  # All threads and Ractors agree on the types, and the limit of names holds.
  def test_undeclared_names_from_all_sides
    output = ruby(<<~RUBY, options: ["-W:no-experimental"])
      #{PRELUDE}
      Tracepoint.undeclared_limit = 150
      def work(n)
        values = [n, n.to_s, n / 2.0, n.even?, Object]
        200.times do |i|
          Tracepoint.fire("event_\#{i}", nil, id: nil)
          Tracepoint.fire("event_\#{i}", values[(n + i) % 5], id: values[n % 5])
          Tracepoint.fire("event_\#{i}", values[i % 5]) # one too few
          Tracepoint.span("work_\#{i % 50}", nil) { i } == i or raise "span"
          Tracepoint.span("work_\#{i % 50}", values[n % 5]) { i } == i or raise "span"
        end
        n
      end
      threads = Array.new(3) { |n| Thread.new { work(n) } }
      children = Array.new(10) { fork { work(3); exit!(Tracepoint.probes.size == 150 ? 0 : 1) } }
      raise "sides" unless threads.map(&:value) == [0, 1, 2]
      children.each { |pid| Process.wait(pid); raise "child \#{$?.inspect}" unless $?.success? }
      raise Tracepoint.stats.inspect unless Tracepoint.probes.size == 150 && Tracepoint.stats[:over_limit] > 0
      # Not while children are forked: a Ractor may hold Ruby's own lock then.
      Tracepoint.undeclared_limit = 170
      ractors = defined?(Ractor) ? Array.new(3) { |n| Ractor.new(n) { |n| work(n) } } : []
      ractors.each { |ractor| ractor.respond_to?(:value) ? ractor.value : ractor.take }
      raise "Ractors" unless ractors.empty? || Tracepoint.probes.size == 170
      raise "open" if Tracepoint.probes.any? { |it| it.operands.value?(nil) }
      puts "ok"
    RUBY
    assert_equal "ok\n", output.lines.last
  end

  def test_fork_while_threads_define
    assert_equal "ok\n", ruby(<<~RUBY)
      #{PRELUDE}
      going = true
      threads = Array.new(3) { |t| Thread.new { i = 0; Tracepoint.define("t\#{t}_\#{i += 1}", [Integer]) while going && i < 5000 } }
      20.times do |n|
        pid = fork { Tracepoint.define("forked_\#{n}").fire; Tracepoint.fire(:ad_hoc, n); exit!(0) }
        Process.wait(pid)
        raise "child" unless $?.success?
      end
      going = false
      threads.each(&:join)
      puts "ok"
    RUBY
  end

  def test_ractors
    skip "no Ractor" unless defined?(Ractor)
    output = ruby(<<~RUBY, options: ["-W:no-experimental"])
      #{PRELUDE}
      PROBE = Tracepoint.define(:main, {id: Integer, sku: String}, provider: :shop)
      SPAN = Tracepoint.define_span(:work, {id: Integer})
      BY_NAME = Tracepoint.define(:by_name, {id: Integer})
      raise "shareable" unless [PROBE, SPAN, PROBE.provider].all? { |it| Ractor.shareable?(it) }
      taps = [PROBE, SPAN, BY_NAME].flat_map { |entry| tap(entry) }
      ractors = Array.new(4) do |n|
        Ractor.new(n) do |n|
          200.times do |i|
            PROBE.fire(i, "sku") or raise "fire"
            PROBE.fire { [i, "sku"] } or raise "block"
            Tracepoint.fire(:by_name, i) or raise "by name"
            SPAN.measure(i) { i } == i or raise "span"
            Tracepoint.define("r_\#{i}", {id: Integer}).fire(i)
            Tracepoint.fire("ad_hoc_\#{i}", i, nil)
            Tracepoint.span("ad_hoc_span_\#{i}", n) { nil }
            begin
              PROBE.fire(1)
              raise "arity"
            rescue ArgumentError
            end
          end
          Tracepoint::Provider[:shop].enabled? or raise "provider"
          [Tracepoint.probes.size, Tracepoint.stats[:failed], Tracepoint.strict, Tracepoint.supported?]
        end
      end
      results = ractors.map { |ractor| ractor.respond_to?(:value) ? ractor.value : ractor.take }
      raise results.inspect unless results.last[1..-1] == [0, false, true]
      raise "probes" unless Tracepoint.probes.size == 3 + 200 * 3
      raise taps.map(&:hits).inspect unless taps.map(&:hits) == [1600, 800, 800, 800]
      puts "ok"
    RUBY
    assert_equal "ok\n", output
  end

  def test_no_memory_file
    output = ruby(<<~RUBY)
      require "tracepoint"
      require "fiddle"
      Process.setrlimit(:NOFILE, 3)
      probe = Tracepoint.define(:dead, {id: Integer})
      span = Tracepoint.define_span(:dead_span, {id: Integer})
      raise "fire" if probe.fire(1) || probe.enabled? || span.enabled?
      raise "measure" unless span.measure(1) { 5 } == 5
      probe.provider.disable.enable
      Tracepoint.strict = true
      begin
        probe.fire("x")
        raise "strict"
      rescue TypeError
      end
      raise "traced" if probe.fire(1) || probe.enabled?
      raise "count" unless Tracepoint.stats[:failed] == 2
      puts "ok"
    RUBY
    assert_match(/warning: ruby_app:dead\(id: Integer\) cannot be traced: .+\nok\n\z/, output)
    assert_equal 1, output.scan("cannot be traced").size
  end
end
