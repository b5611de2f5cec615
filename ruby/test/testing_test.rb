# frozen_string_literal: true

require "test_helper"
require "tracepoint/testing"

# Captured events, with the extension and without it.
class TestingTest < Minitest::Test
  include Tracepoint::Testing::Assertions

  TYPES = { int: Integer, float: Float, text: String, word: Symbol, flag: :bool }.freeze
  # Values for all five types, the values that a tracer reads, and whether they were converted.
  CONVERSIONS = [
    [[7, 1.5, "tea", :green, true], [7, 1.5, "tea", :green, true], 0],
    [[nil] * 5, [nil] * 5, 0],
    [[2**70, 2, :tea, "green", false], [2**63 - 1, 2.0, "tea", :green, false], 1],
    [[-2**63, 2**2000, "te\0a", :"gr\0een", nil], [1 - 2**63, Float::INFINITY, "te", :gr, nil], 1],
    [[2.9, -2**2000, "", "", 1], [2, -Float::INFINITY, "", :"", nil], 1],
    [[-1e300, "1.5", 7, [], "x"], [1 - 2**63, nil, nil, nil, nil], 1],
    [[Float::NAN, 2**60, "\xff", "\xff", true], [nil, (2**60).to_f, "\xff", "\xff", true], 1],
    [[true, 0.0, "é".encode("ISO-8859-1"), :é, true], [1, 0.0, "\xe9", :é, true], 1],
    [[Object.new, Object.new, Object.new, Object.new, Object.new], [nil] * 5, 1]
  ].freeze

  def setup
    @probe = Tracepoint.define(unique, { id: Integer, sku: String }, provider: :shop)
    @span = Tracepoint.define_span(unique, { id: Integer }, provider: :shop, result: { status: Integer, route: String })
  end

  def test_an_event
    stop_capturing
    refute @probe.fire(1, "before")
    event, = events = captured { assert @probe.fire(7, "tea") }
    assert_equal 1, events.size
    assert_equal [:shop, @probe.name, { id: 7, sku: "tea" }], [event.provider, event.name, event.arguments]
    assert_equal [{}, nil, nil], [event.results, event.duration_ns, event.outcome]
    assert_equal "shop:#{@probe.name}(id: 7, sku: \"tea\")", event.to_s
    refute @probe.fire(2, "after")
    assert_empty(captured {})
  end

  def test_enabled
    enabled = -> { [@probe.enabled?, @span.enabled?, Tracepoint.enabled?("shop:#{@probe.name}")] }
    captured { assert_equal [true] * 3, enabled.call }
    stop_capturing
    assert_equal [false] * 3, enabled.call
    refute(@probe.fire { flunk })
  end

  def test_conversions
    probe = Tracepoint.define(unique, TYPES)
    CONVERSIONS.each do |given, seen, converted|
      assert_equal converted, counting(:converted) { assert_equal seen.inspect, values(probe) { probe.fire(*given) }.inspect }
    end
  end

  def test_strings_are_those_of_the_moment
    text = +"before"
    event, = captured { [@probe.fire(1, text), text.replace("after")] }
    assert_equal "before", event.arguments[:sku]
    _, ending = captured do
      span = Tracepoint.define_span(unique, { text: String })
      span.measure(text) { text.replace("later") }
    end
    assert_equal "later", ending.arguments[:text]
    kept = captured do
      span = Tracepoint.define_span(unique, { text: String }, result: { more: String })
      open = span.start(text)
      open[:more] = text
      text << "!"
      open.finish
    end
    assert_equal({ text: "later", more: "later" }, kept.last.to_h.slice(:text, :more))
  end

  def test_blocks
    assert_equal [1, "x"], values(@probe) { assert(@probe.fire { [1, "x"] }) }
    assert_equal [], values(Tracepoint.define(empty = unique, {})) { Tracepoint.fire(empty) }
    assert_equal(2, counting(:dropped) do
      assert_empty(captured { [refute(@probe.fire { raise "boom" }), refute(@probe.fire { [1] })] })
    end)
    one = Tracepoint.define(unique, { id: Integer })
    assert_equal([3], values(one) { one.fire { 3 } })
    assert_raises(ArgumentError) { captured { @probe.fire(1) } }
  end

  def test_undeclared
    name = unique
    time = Time.at(0).utc
    events = captured { Tracepoint.fire(name, 1, nil, time) && Tracepoint.fire(name, 2, :x, "y") }
    assert_equal [[1, nil, time.to_s], [2, :x, "y"]], events.map { |event| event.arguments.values }
    assert_equal %i[arg0 arg1 arg2], events.first.arguments.keys
    assert_equal(1, counting(:dropped) { assert_empty(captured { refute Tracepoint.fire(name, 1) }) })
    keywords = unique
    assert_equal({ id: 1, on: true }, captured { Tracepoint.fire(keywords, id: 1, on: true) }.first.arguments)
    spanned = unique
    assert_equal(4, Tracepoint.span(spanned, []) { 4 })
    refute_fired(spanned, outcome: :raised)
    assert_fired(spanned, arg0: "[]", outcome: :returned)
  end

  def test_a_span
    events = captured do
      assert_equal(:value, @span.measure(7) do |span|
        span[:status] = 200
        span[:route] = "a\0b"
        sleep 0.002
        :value
      end)
    end
    assert_equal ["#{@span.name}__begin", "#{@span.name}__end"], events.map { |event| event.name.to_s }
    ending = events.last
    assert_equal [{ id: 7 }, { status: 200, route: "a" }, :returned], [ending.arguments, ending.results, ending.outcome]
    assert_operator ending.duration_ns, :>=, 2_000_000
    assert_equal %i[duration_ns outcome id status route], ending.to_h.keys
    assert_equal({ id: 7 }, events.first.to_h)
  end

  def test_outcomes
    assert_equal %i[raised thrown thrown returned], [
      outcome { assert_raises(IOError) { @span.measure(1) { raise IOError } } },
      outcome { catch(:out) { @span.measure(1) { throw :out } } },
      outcome { @span.measure(1) { break } },
      outcome { @span.measure(1) { next } }
    ]
    assert_equal :thrown, outcome { Thread.new { @span.measure(1) { Thread.current.kill } }.join }
  end

  def test_start_and_finish
    open = nil
    assert_equal [{ id: 3 }], captured { open = @span.start(3) }.map(&:to_h)
    events = captured do
      open[:status] = 1
      assert_raises(ArgumentError) { open[:absent] = 1 }
      assert_raises(ArgumentError) { open.finish(:lost) }
      open.finish(:raised)
      open[:status] = 2
      open.finish
    end
    assert_equal [[{ id: 3 }, { status: 1, route: nil }, :raised]], events.map { |it| [it.arguments, it.results, it.outcome] }
  end

  def test_a_span_that_began_before
    stop_capturing
    open = @span.start(3)
    assert_equal [[nil, nil, :thrown]], captured { open.finish(:thrown) }.map { |it| [it.duration_ns, it.arguments[:id], it.outcome] }
    events = nil
    @span.measure(4) do
      capture = Tracepoint::Testing::Capture.new
      events = -> { capture.events.tap { capture.close } }
    end
    assert_equal [[nil, 4, :returned]], events.call.map { |it| [it.duration_ns, it.arguments[:id], it.outcome] }
  end

  def test_nested_spans_threads_and_fibers
    events = captured do
      @span.measure(1) { @span.measure(2) { @probe.fire(3, "x") } }
      Array.new(4) { |i| Thread.new { 100.times { @probe.fire(i, "thread") } } }.each(&:join)
      fibers = Array.new(2) { |i| Fiber.new { @span.measure(i + 10) { Fiber.yield } } }
      2.times { fibers.each(&:resume) }
    end
    assert_equal [1, 2, 3, 2, 1, *[*0..3].flat_map { |i| [i] * 100 }, 10, 11, 10, 11],
                 events.first(5).map { |it| it.arguments[:id] } + events[5, 400].map { |it| it.arguments[:id] }.sort +
                 events.last(4).map { |it| it.arguments[:id] }
  end

  def test_ractors
    needs_native
    skip "no Ractor" unless defined?(Ractor)
    events = captured do
      ractor = Ractor.new(@probe, @span.start(-1)) do |probe, span|
        10.times { |i| probe.fire(i, "ractor") }
        span[:route] = "/a".dup
        span.finish
      end
      ractor.respond_to?(:join) ? ractor.join : ractor.take
    end
    assert_equal [-1, *0..9, -1], events.map { |event| event.arguments[:id] }
    assert_equal "/a", events.last.results[:route]
  end

  def test_captures_nest_and_end
    inner = nil
    outer = captured do
      @probe.fire(1, "outer")
      inner = captured { @probe.fire(2, "inner") }
      @probe.fire(3, "outer")
    end
    assert_equal [[1, 2, 3], [2]], [outer, inner].map { |events| events.map { |it| it.arguments[:id] } }
    stop_capturing
    assert_raises(IOError) { captured { raise IOError } }
    refute @probe.enabled?
  end

  def test_methods
    kind = self.class.const_set(unique("Till"), Class.new)
    kind.class_eval(<<~RUBY, __FILE__, __LINE__ + 1)
      extend Tracepoint::Methods

      trace def pay!(cents, currency: "EUR")
        yield cents, currency
      end, args: {cents: Integer, currency: String}

      trace_class_method def self.open
        raise IOError
      end
    RUBY
    events = captured do
      assert_equal [7, "EUR"], kind.new.pay!(7) { |*all| all }
      assert_raises(IOError) { kind.open }
    end
    spans = Tracepoint::Methods.spans(kind) + Tracepoint::Methods.spans(kind.singleton_class)
    assert_equal spans.flat_map { |span| %w[begin end].map { |suffix| :"#{span.name}__#{suffix}" } }, events.map(&:name)
    assert_equal [[:returned, { cents: 7, currency: nil }], [:raised, {}]], events.select(&:outcome).map { |it| [it.outcome, it.arguments] }
    assert_equal [1, "EUR"], kind.new.pay!(1) { |*all| all }
  end

  def test_methods_by_their_names_in_ruby
    name = unique("Late")
    assert_fired("#{self.class}::#{name}#m", a: 1) do
      self.class.class_eval("class #{name}; extend Tracepoint::Methods; trace def m(a); end, args: {a: Integer}; end", __FILE__, __LINE__)
      self.class.const_get(name).new.m(1)
    end
    refute_fired("#{self.class}::#{name}#m", a: 2)
    %i[assert_fired refute_fired].each do |assertion|
      error = assert_raises(ArgumentError) { public_send(assertion, "#{self.class}::#{name}#n") }
      assert_equal "no traced method is called #{self.class}::#{name}#n", error.message
    end
    kind = self.class.const_get(name)
    kind.class_eval { trace_class_method def self.[](key); end }
    assert_equal 1, assert_fired("#{kind}.[]") { kind[1] }.size
    kind.untrace
    kind.trace(:m, as: :other)
    kind.new.m(1)
    assert_equal([1, nil], assert_fired("#{kind}#m").map { |event| event.arguments[:a] })
  end

  def test_children_do_not_capture
    events = captured do
      @probe.fire(1, "parent")
      Process.wait(fork { exit!(@probe.enabled? || @probe.fire(2, "child") ? 1 : 0) })
      assert_predicate $?, :success?
    end
    assert_equal [1], events.map { |event| event.arguments[:id] }
  end

  def test_a_child_that_leaves_the_block
    parent = $$
    child = nil
    events = captured { child = fork }
    if $$ != parent
      fired = captured { @probe.fire(3, "child") }.map { |event| event.arguments[:id] }
      exit!(fired == [3] && !@probe.enabled? ? 0 : 1)
    end
    Process.wait(child)
    assert_predicate $?, :success?
    assert_empty events
  end

  def test_probes_defined_meanwhile
    assert_equal [5], values(nil) { Tracepoint.define(unique, { id: Integer }).fire(5) }
  end

  def test_a_disabled_provider
    probe = Tracepoint.define(unique, { id: Integer }, provider: unique("off"))
    probe.provider.disable
    assert_empty(captured { [refute(probe.fire(1)), refute(probe.fire { flunk }), refute(probe.enabled?)] })
    probe.provider.enable
    assert_equal [1], values(probe) { probe.fire(1) }
  end

  def test_strict
    strictly do
      assert_raises(TypeError) { captured { @probe.fire("x", "x") } }
      assert_equal [1, "x"], values(@probe) { @probe.fire(1, "x") }
      assert_raises(RuntimeError) { captured { @probe.fire { raise "boom" } } }
    end
  end

  def test_assertions
    full = "shop:#{@probe.name}"
    assert_equal 1, assert_fired(full, id: 7) { @probe.fire(7, "tea") }.size
    assert_fired(@probe, id: 1..7, sku: /t/)
    refute_fired(full, id: 8)
    assert_fired(full, id: 7, times: 1)
    assert_fired(full, times: 2) { 2.times { |id| @probe.fire(id, "tea") } }
    assert_fired(full, id: 0, times: 1) { 2.times { |id| @probe.fire(id, "tea") } }
    assert_fired(full, times: 0) {}
    message = failure { assert_fired(full, id: 7, times: 2) }
    assert_match(/#{full} with id: 7 fired 1 times, not 2. Fired:\n  #{full}\(id: 7, /, message)
    assert_match(/#{full} fired 0 times, not 1. Nothing/, failure { assert_fired(full, times: 1) {} })
    assert_match(/#{full} with id: 8 did not fire. Fired:\n  #{full}\(id: 7, /, failure { assert_fired(full, id: 8) })
    assert_match(/#{full} did not fire. Nothing fired./, failure { assert_fired(full) {} })
    assert_match(/#{full} with id: 7 fired. Fired:\n  #{full}\(id: 7, /, failure { refute_fired(full, id: 7) })
    refute_fired(@span) { @span.start(1) }
    assert_fired("#{@span}"[/[^(]+/] + "__begin", id: 1)
    assert_fired(@span, status: nil, outcome: :raised) { @span.start(1).finish(:raised) }
    assert_match(/has no argument :idd/, assert_raises(ArgumentError) { refute_fired(full, idd: 7) }.message)
  end

  def test_messages
    full = "shop:#{@probe.name}"
    message = failure do
      assert_fired(full, id: 0) { [@span.start(0), Array.new(21) { |i| @probe.fire(i + 1, "x") }] }
    end
    list = (1..20).map { |id| "  #{full}(id: #{id}, sku: \"x\")\n" }.join
    assert_equal "#{full} with id: 0 did not fire. Fired:\n#{list}  … and 2 more", message
    message = failure { assert_fired("#{full}s") { @probe.fire(1, "x") } }
    assert_equal "#{full}s did not fire. There is no such probe. Fired:\n  #{full}(id: 1, sku: \"x\")", message
    name = unique
    error = assert_raises(ArgumentError) { assert_fired(name, arg1: 7) { Tracepoint.fire(name, 7) } }
    assert_equal "ruby_app:#{name}(arg0: Integer) has no argument :arg1", error.message
  end

  def test_matcher
    extend Tracepoint::Testing::Matchers
    fired = -> { @probe.fire(7, "tea") }
    assert fire(@probe).with(id: 7).matches?(fired)
    refute fire(@probe).with(id: 8).matches?(fired)
    assert fire(@probe).times(2).matches?(-> { 2.times { fired.call } })
    refute fire(@probe).times(1).matches?(-> { 2.times { fired.call } })
  end

  def test_rspec
    skip "no rspec: scripts/setup.sh --test installs it" unless system("rspec --version", out: File::NULL, err: File::NULL)
    Dir.mktmpdir do |dir|
      File.write(File.join(dir, "till_spec.rb"), SPEC)
      output, status = Open3.capture2e("rspec", "-I#{LIB}", "--no-color", dir)
      refute status.success?
      assert_match(/3 examples, 1 failure/, output)
      assert_match(/expected the block to fire shop:order with id: 8. Fired:\n +shop:order\(id: 7\)/, output)
    end
  end

  SPEC = <<~RUBY
    require "tracepoint/testing"
    RSpec.configure { |config| config.include Tracepoint::Testing::Matchers }
    RSpec.describe "the till" do
      probe = Tracepoint.define("shop:order", {id: Integer})
      it("fires") { expect { probe.fire(7) }.to fire("shop:order").with(id: a_kind_of(Integer)).times(1) }
      it("does not fire") { expect { nil }.not_to fire("shop:order") }
      it("fails") { expect { probe.fire(7) }.to fire("shop:order").with(id: 8) }
    end
  RUBY
  private_constant :SPEC

  private

  def captured(&block)
    Tracepoint::Testing.capture(&block)
  end

  # Return the operands of the only event that the block fires.
  def values(entry, &block)
    events = captured(&block)
    assert_equal 1, events.size, entry
    events.first.arguments.values
  end

  def outcome(&block)
    captured(&block).last.outcome
  end

  def failure(&block)
    assert_raises(Minitest::Assertion, &block).message
  end

  # Stop the capture of the test itself.
  def stop_capturing
    @tracepoint_capture.close
    @tracepoint_capture = Struct.new(:close).new
  end
end
