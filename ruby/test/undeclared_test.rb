# frozen_string_literal: true

require "test_helper"

# Undeclared names that are fired or measured.
class UndeclaredTest < Minitest::Test
  # An object without reliable methods.
  class Hostile
    def initialize(&to_s)
      define_singleton_method(:to_s, &to_s)
    end
  end
  BARE = Class.new(BasicObject)

  def setup
    @name = unique("undeclared")
  end

  def test_types_come_from_the_first_arguments
    assert_equal false, Tracepoint.fire("shop:#{@name}", 1, "x", :y, 1.5, true, Object.new, 2**70, BARE.new)
    probe = Tracepoint::Provider[:shop][@name]

    assert_equal [Integer, String, Symbol, Float, :bool, String, Integer, String], probe.operands.values
    assert_equal "arg7", probe.operands.keys.last.to_s
    assert_same probe, Tracepoint.define("shop:#{@name}", probe.operands)
  end

  # ---------------------------------------------------------- it never raises

  def test_another_number_of_arguments_is_dropped
    Tracepoint.fire(@name, 1)
    assert_equal(3, counting(:dropped) do
      [[], [1, "x"], [1, 2, 3]].each { |arguments| assert_equal false, Tracepoint.fire(@name, *arguments) }
      assert_equal false, Tracepoint.fire(@name, 2)
    end)
    tapping(entry) do |tap|
      assert_equal(1, counting(:dropped) { assert_equal false, Tracepoint.fire(@name, 1, "x") })
      assert_equal(1, counting(:dropped) { assert_equal false, entry.fire(1, "x") })
      assert_equal 0, tap.hits
      assert_equal true, Tracepoint.fire(@name, 3)
    end
    strictly { assert_raises(ArgumentError) { Tracepoint.fire(@name, 1, "x") } }
  end

  def test_a_span_of_another_number_is_only_run
    assert_equal 1, Tracepoint.span(@name, 1) { 1 }
    dropped = counting(:dropped) do
      assert_equal 2, Tracepoint.span(@name) { 2 }
      assert_equal 3, Tracepoint.span(@name, 1, 2) { 3 }
      assert_equal 4, entry.measure { 4 }
    end
    assert_equal 3, dropped
    strictly { assert_raises(ArgumentError) { Tracepoint.span(@name) { flunk } } }
  end

  BAD_NAMES = ["", "a b", "é", "a" * 64, "s" * 1_000_000, "a\0", "a:b:c", "x".encode("UTF-16LE"), "\xff", :"a?",
               nil, 1, [], Object.new, BARE.new].freeze

  def test_a_name_that_is_none_is_dropped
    BAD_NAMES.each do |name|
      assert_equal(1, counting(:dropped) { assert_equal false, Tracepoint.fire(name, 1) })
      assert_equal(1, counting(:dropped) { assert_equal 5, Tracepoint.span(name, 1) { 5 } })
      strictly do
        assert_raises(Tracepoint::DefinitionError, TypeError) { Tracepoint.fire(name, 1) }
        assert_raises(Tracepoint::DefinitionError, TypeError) { Tracepoint.span(name, 1) { flunk } }
      end
    end
    assert_equal(1, counting(:dropped) { assert_equal 5, Tracepoint.span("s" * 57) { 5 } })
  end

  def test_too_many_arguments_are_dropped
    assert_equal(1, counting(:dropped) { assert_equal false, Tracepoint.fire(@name, *1..13) })
    assert_equal(1, counting(:dropped) { assert_equal 5, Tracepoint.span(@name, *1..11) { 5 } })
    assert_nil entry
  end

  # The message is created only for the first warning.
  def test_what_makes_no_probe_costs_no_object
    needs_native
    output = alone(<<~RUBY, options: ["-W0"])
      counts = ->(key, &block) do
        block.call
        before = Tracepoint.stats[key]
        objects = GC.stat(:total_allocated_objects)
        100.times(&block)
        objects = GC.stat(:total_allocated_objects) - objects
        p [Tracepoint.stats[key] - before, objects < 100]
      end
      text, long, own = "a b", "s" * 1_000_000, "s" * 57
      counts.call(:dropped) { Tracepoint.fire(:"job-done", 1) }
      counts.call(:dropped) { Tracepoint.fire(text) }
      counts.call(:dropped) { Tracepoint.fire(long) }
      counts.call(:dropped) { Tracepoint.fire(nil) }
      counts.call(:dropped) { Tracepoint.fire(:many, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13) }
      counts.call(:dropped) { Tracepoint.span(:many, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11) { nil } }
      counts.call(:dropped) { Tracepoint.span(own) { nil } }
      Tracepoint.undeclared_limit = 0
      counts.call(:over_limit) { Tracepoint.fire(:good, 1) }
      counts.call(:over_limit) { Tracepoint.fire(:"job-done", 1) }
      p Tracepoint.probes.size
    RUBY
    assert_equal "#{"[100, true]\n" * 9}0\n", output
  end

  # After the first time, C code rejects calls alone; Ruby would reject them as well.
  def test_names_that_are_refused_later
    Tracepoint.fire("a b")
    longest = unique("n").ljust(63, "_")
    ["Az09_#{unique}", longest, "#{"p" * 63}:#{longest}", "p:#{unique}"].each do |name|
      assert_equal(0, counting(:dropped) { Tracepoint.fire(name, *1..12) })
      assert named(name.split(":").last)
    end
    own = unique("s").ljust(56, "_")
    assert_equal(0, counting(:dropped) { Tracepoint.span("#{"p" * 63}:#{own}", *1..8, a: 1, b: 2) { nil } })
    assert named(own)
    [":x", "x:", ":", "#{"p" * 64}:x", "x:#{"n" * 64}", "a\0", "x".encode("UTF-16LE")].each do |name|
      assert_equal(1, counting(:dropped) { Tracepoint.fire(name) })
    end
    Tracepoint.fire(@name, *1..13)
    assert_equal(0, counting(:dropped) { Tracepoint.fire(@name, 1) })
    assert_equal [Integer], entry.operands.values
  end

  def test_a_span_that_is_fired_and_an_event_that_is_measured
    Tracepoint.span(@name) { nil }
    assert_equal(2, counting(:dropped) do
      assert_equal false, Tracepoint.fire(@name)
      assert_equal false, Tracepoint.fire("#{@name}__end", 1)
    end)
    event = unique
    Tracepoint.fire(event, 1)
    assert_equal(1, counting(:dropped) { assert_equal 5, Tracepoint.span(event, 1) { 5 } })
    # One of the two names that the span would need is taken.
    Tracepoint.define("#{event}x__end")
    assert_equal(1, counting(:dropped) { assert_equal 5, Tracepoint.span("#{event}x") { 5 } })
    strictly do
      assert_raises(ArgumentError) { Tracepoint.fire(@name) }
      assert_raises(ArgumentError) { Tracepoint.span(event, 1) { flunk } }
    end
  end

  def test_what_the_block_of_a_span_raises_goes_through
    assert_raises(KeyError) { Tracepoint.span(@name, 1) { raise KeyError } }
    assert_raises(KeyError) { Tracepoint.span(@name) { raise KeyError } }
    assert_raises(KeyError) { Tracepoint.span("a b") { raise KeyError } }
    assert_equal 5, Tracepoint.span("a b") { break 5 }
  end

  # ------------------------------------------------------------------- nil

  def test_nil_leaves_the_type_open
    Tracepoint.fire(@name, nil, "x")
    assert_equal({ arg0: nil, arg1: String }, entry.operands)
    assert_equal "ruby_app:#{@name}(arg0: nil, arg1: String)", entry.to_s
    assert_equal false, Tracepoint.fire(@name, nil, "y")
    assert_equal [nil, String], entry.operands.values
    assert_equal false, Tracepoint.fire(@name, 7, nil)
    assert_equal [Integer, String], entry.operands.values
    assert_predicate entry.operands, :frozen?
    assert_equal [8, "y"], operands_of(entry) { Tracepoint.fire(@name, 8, "y") }
    assert_equal(1, counting(:converted) { assert_equal [nil, nil], operands_of(entry) { Tracepoint.fire(@name, "z", nil) } })
  end

  VALUES = [[5, Integer], [2**80, Integer], [1.5, Float], ["s", String], [:sym, Symbol], [false, :bool], [BARE.new, String]].freeze

  def test_the_first_value_settles_the_type
    VALUES.each do |value, type|
      name = unique
      Tracepoint.fire(name, nil)
      Tracepoint.fire(name, value)
      assert_equal [type], named(name).operands.values
      span = unique
      Tracepoint.span(span, nil) { nil }
      Tracepoint.span(span, value) { nil }
      assert_equal [type], named(span).operands.values
    end
  end

  def test_nil_while_the_type_is_open
    Tracepoint.fire(@name, nil)
    tapping(entry) do |tap|
      assert_equal true, Tracepoint.fire(@name, nil)
      assert_nil tap.value(0, Integer)
      assert_equal true, Tracepoint.fire(@name, "first")
      assert_equal "first", tap.value(0, String)
    end
  end

  def test_a_block_settles_it_too
    Tracepoint.fire(@name, nil)
    tapping(entry) do |tap|
      assert_equal(true, Tracepoint.fire(@name) { [1.5] })
      assert_equal 1.5, tap.value(0, Float)
      assert_equal(1, counting(:dropped) { assert_equal false, Tracepoint.fire(@name) { [1, 2] } })
    end
  end

  # ----------------------------------------------------------------- keywords

  def test_keywords_are_arguments_with_names
    Tracepoint.fire(@name, 1, id: 2, queue: "mail", at: nil)
    assert_equal({ arg0: Integer, id: Integer, queue: String, at: nil }, entry.operands)
    tapping(entry) do |tap|
      assert_equal true, Tracepoint.fire(@name, 1, queue: "web", at: 0.5, id: 3)
      assert_equal [1, 3, "web", 0.5], [tap.value(0, Integer), tap.value(1, Integer), tap.value(2, String), tap.value(3, Float)]
      others = [{ id: 1, queue: "x" }, { id: 1, queue: "x", at: 0.5, more: 1 }, { id: 1, queue: "x", att: 0.5 }]
      assert_equal(3, counting(:dropped) { others.each { |hash| assert_equal false, Tracepoint.fire(@name, 1, **hash) } })
      assert_equal 1, tap.hits
    end
  end

  def test_keywords_of_a_span
    assert_equal 5, Tracepoint.span(@name, id: 1, sku: nil) { 5 }
    tapping(entry) do |first, last|
      assert_equal 6, Tracepoint.span(@name, sku: "tea", id: 2) { 6 }
      assert_equal [2, "tea"], [first.value(0, Integer), first.value(1, String)]
      assert_equal [2, "tea"], [last.value(2, Integer), last.value(3, String)]
      assert_equal(1, counting(:dropped) { assert_equal 7, Tracepoint.span(@name, id: 1) { 7 } })
    end
  end

  def test_keywords_that_cannot_be_names_are_one_argument
    [{ "a b": 1 }, { "id" => 1 }, { 1 => 2 }, { outcome: 1 }, { "é": 1 }, { nil => 1 }].each do |hash|
      name = unique
      Tracepoint.fire(name, **hash)
      assert_equal({ arg0: String }, named(name).operands)
      assert_equal [hash.to_s], operands_of(named(name)) { Tracepoint.fire(name, **hash) }.map { |text| text.dup.force_encoding("UTF-8") }
    end
    Tracepoint.fire(@name, 1, arg0: 2)
    assert_equal({ arg0: Integer, arg1: String }, entry.operands)
  end

  def test_a_hash_is_no_keywords
    hash = { id: 1 }
    Tracepoint.fire(@name, hash)
    assert_equal({ arg0: String }, entry.operands)
    assert_equal [hash.to_s], operands_of(entry) { Tracepoint.fire(@name, hash) }
  end

  # --------------------------------------------------------------------- to_s

  def test_to_s_of_what_has_no_type
    time = Time.at(0).utc
    Tracepoint.fire(@name, time)
    assert_equal [time.to_s], operands_of(entry) { Tracepoint.fire(@name, time) }
    [12, 1.5, true, [1, 2], Rational(1, 2), Kernel].each do |value|
      assert_equal(0, counting(:converted) { assert_equal [value.to_s], operands_of(entry) { Tracepoint.fire(@name, value) } })
    end
    assert_equal [nil], operands_of(entry) { Tracepoint.fire(@name, nil) }
    assert_equal ["text"], operands_of(entry) { Tracepoint.fire(@name, :text) }
  end

  def test_to_s_in_a_span
    Tracepoint.span(@name, Object) { nil }
    tapping(entry) do |first, last|
      Tracepoint.span(@name, [1]) { assert_equal "[1]", first.value(0, String) }
      assert_equal "[1]", last.value(2, String)
    end
  end

  def test_to_s_is_called_only_while_someone_traces
    called = 0
    counts = Hostile.new { (called += 1).to_s }
    Tracepoint.fire(@name, counts)
    Tracepoint.fire(@name, counts)
    Tracepoint.span("#{@name}s", counts) { nil }
    assert_equal 0, called
    assert_equal ["1"], operands_of(entry) { Tracepoint.fire(@name, counts) }
  end

  def test_to_s_that_fails_costs_the_value
    Tracepoint.fire(@name, Object, 1)
    [Hostile.new { raise "no" }, Hostile.new { raise NotImplementedError }, Hostile.new { to_s }, Hostile.new { throw :nobody },
     BARE.new].each do |value|
      assert_equal(1, counting(:converted) { assert_equal [nil, 2], operands_of(entry) { Tracepoint.fire(@name, value, 2) } })
      assert_nil $!
      strictly { assert_raises(TypeError) { Tracepoint.fire(@name, value, 2) } }
    end
  end

  def test_to_s_that_gives_no_string
    Tracepoint.fire(@name, Object)
    assert_match(/\A#<UndeclaredTest::Hostile/, operands_of(entry) { Tracepoint.fire(@name, Hostile.new { 5 }) }.first)
  end

  def test_to_s_of_any_size_and_encoding
    Tracepoint.fire(@name, Object)
    ["x" * 1_000_000, "\xff\xfe", "é".encode("ISO-8859-1"), "", "frozen"].each do |text|
      bytes = operands_of(entry) { Tracepoint.fire(@name, Hostile.new { text }) }.first
      assert_equal text.b, bytes.b
    end
    assert_equal(1, counting(:converted) { operands_of(entry) { Tracepoint.fire(@name, Hostile.new { "a\0b" }) } })
  end

  # A to_s that changes the other arguments must not leave them dangling.
  def test_to_s_that_changes_another_argument
    text = +"before"
    Tracepoint.fire(@name, text, Object)
    assert_equal ["y" * 500, "done"], (operands_of(entry) do
      Tracepoint.fire(@name, text, Hostile.new do
        text.replace("y" * 500)
        GC.start
        "done"
      end)
    end)
  end

  def test_strict_takes_to_s
    Tracepoint.fire(@name, Object)
    strictly do
      assert_equal false, Tracepoint.fire(@name, Time.now)
      assert_equal 5, Tracepoint.span("#{@name}s", Time.now) { 5 }
    end
  end

  # ------------------------------------------------------------------ define

  def test_define_later
    Tracepoint.fire(@name, nil, "x")
    probe = entry
    assert_raises(Tracepoint::DefinitionError) { Tracepoint.define(@name, [Integer]) }
    assert_raises(Tracepoint::DefinitionError) { Tracepoint.define(@name, [Integer, Integer]) }
    assert_equal false, Tracepoint.fire(@name, 1)
    assert_same probe, Tracepoint.define(@name, { id: Integer, sku: String })
    assert_equal [Integer, String], probe.operands.values
    # From now on, the probe counts as declared.
    assert_raises(ArgumentError) { Tracepoint.fire(@name, 1) }
    assert_equal(1, counting(:converted) { assert_equal [1, nil], operands_of(probe) { Tracepoint.fire(@name, 1, Time.now) } })
  end

  def test_define_span_later
    Tracepoint.span(@name, 1) { nil }
    assert_same entry, Tracepoint.define_span(@name, { id: Integer })
    assert_raises(ArgumentError) { Tracepoint.span(@name) { flunk } }
    assert_equal 5, Tracepoint.span(@name, 1) { 5 }
  end

  # ------------------------------------------------------------------- limit

  def test_the_limit
    output = alone(<<~RUBY)
      p Tracepoint.undeclared_limit
      1_100.times { |i| Tracepoint.fire("event_\#{i}", i) }
      60.times { |i| raise "value" unless Tracepoint.span("p\#{i}:span", i) { i } == i }
      p Tracepoint.probes.size, Tracepoint::Provider.all.size, Tracepoint.stats[:over_limit], Tracepoint.stats[:dropped]
      Tracepoint.define(:declared)
      1_000.times { |i| Tracepoint.define("event_\#{i}", [Integer]) if i < 3 }
      5.times { |i| Tracepoint.fire("later_\#{i}") }
      p Tracepoint.probes.size, Tracepoint.stats[:over_limit]
      Tracepoint.undeclared_limit = 0
      Tracepoint.fire(:never)
      Tracepoint.fire(:event_9, 1)
      Tracepoint.undeclared_limit = 2_000
      Tracepoint.fire(:now)
      p Tracepoint.probes.size, Tracepoint.stats[:over_limit]
    RUBY
    warning = "too many undeclared probes: the limit is 1000; declare them with Tracepoint.define, or raise Tracepoint.undeclared_limit"
    assert_equal [1, warning], [output.scan("warning").size, output[/-e:\d+: warning: (.*)/, 1]]
    assert_equal %w[1000 1000 1 160 0 1004 162 1005 163], output.lines.map(&:chomp).grep(/\A\d+\z/)
  end

  def test_beyond_the_limit_a_name_leaves_nothing_behind
    needs_native
    output = alone(<<~RUBY, options: ["-W0"])
      Tracepoint.undeclared_limit = 10
      fires = -> { 20_000.times { |i| Tracepoint.fire("p\#{i}:event_\#{i}", i) } }
      fires.call
      GC.start
      symbols = Symbol.all_symbols.size
      memory = File.read("/proc/self/status")[/VmRSS:\\s+(\\d+)/, 1].to_i
      fires.call
      GC.start
      p Symbol.all_symbols.size - symbols, File.read("/proc/self/status")[/VmRSS:\\s+(\\d+)/, 1].to_i - memory < 2_000
      p Dir.children("/proc/self/fd").count { |fd| (File.readlink("/proc/self/fd/\#{fd}") rescue "") =~ /libstapsdt/ }
      p Tracepoint.stats.values_at(:sites, :images, :over_limit)
    RUBY
    assert_equal "0\ntrue\n1\n[10, 1, 39980]\n", output
  end

  def test_what_is_no_limit
    [-1, nil, "5", 1.5, -2**70].each { |limit| assert_raises(ArgumentError) { Tracepoint.undeclared_limit = limit } }
    assert_equal 1_000, Tracepoint.undeclared_limit
  end

  def test_strict_tells_of_the_limit
    before = Tracepoint.undeclared_limit
    Tracepoint.undeclared_limit = 0
    strictly do
      assert_raises(Tracepoint::DefinitionError) { Tracepoint.fire(@name) }
      assert_raises(Tracepoint::DefinitionError) { Tracepoint.span(@name) { flunk } }
    end
    assert_nil entry
  ensure
    Tracepoint.undeclared_limit = before
  end

  def test_a_warning_that_raises
    assert_equal "false\n5\n", alone(<<~RUBY)
      def Warning.warn(*, **)
        raise "warned"
      end
      Tracepoint.fire("a b")
      Tracepoint.undeclared_limit = 0
      p Tracepoint.fire(:x), Tracepoint.span(:y) { 5 }
    RUBY
  end

  private

  def named(name)
    Tracepoint.probes.find { |probe| probe.name.to_s == name }
  end

  def entry
    named(@name)
  end

  def alone(script, options: [])
    env = { "TRACEPOINT_NATIVE" => (Tracepoint.supported? ? nil : "0") }
    ruby("require 'tracepoint'\n#{script}", env: env, options: options)
  end
end
