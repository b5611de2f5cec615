# frozen_string_literal: true

require "test_helper"

# The table in ruby/lib/tracepoint.rb, row by row.
class ConversionTest < Minitest::Test
  ODD = Object.new
  MAX = (2**63) - 1
  MIN = (-2**63) + 1

  # type => [given value, converted value, error of strict mode]
  TABLE = {
    Integer => [
      [0, 0], [-1, -1], [2**62, 2**62], [MAX, MAX], [MIN, MIN], [nil, nil],
      [2**63, MAX, RangeError], [-2**63, MIN, RangeError], [2**64, MAX, RangeError], [-2**64, MIN, RangeError],
      [(2**64) - 1, MAX, RangeError], [2**200, MAX, RangeError], [-2**200, MIN, RangeError],
      [1.9, 1, TypeError], [-1.9, -1, TypeError], [1e30, MAX, TypeError], [-1e30, MIN, TypeError],
      [Float::NAN, nil, TypeError], [Float::INFINITY, MAX, TypeError],
      [-(2.0**63), MIN, TypeError], [true, 1, TypeError], [false, 0, TypeError],
      ["7", nil, TypeError], [:a, nil, TypeError], [ODD, nil, TypeError], [Rational(1, 2), nil, TypeError]
    ],
    Float => [
      [0.0, 0.0], [-1.5, -1.5], [Float::INFINITY, Float::INFINITY], [Float::MIN, Float::MIN], [nil, nil],
      [3, 3.0], [2**53, 2.0**53], [-2**53, -(2.0**53)],
      [(2**53) + 1, 2.0**53, RangeError], [2**80, 2.0**80, RangeError],
      [Float::MAX.to_i, Float::MAX, RangeError],
      [2**2000, Float::INFINITY, RangeError], [-2**2000, -Float::INFINITY, RangeError],
      ["1.5", nil, TypeError], [true, nil, TypeError], [ODD, nil, TypeError]
    ],
    String => [
      ["", ""], ["sku", "sku"], ["\u00e9", "\u00e9".b], [:sym, "sym"], [nil, nil], ["\xff".b, "\xff".b],
      ["ab\0cd", "ab", ArgumentError], ["\0", "", ArgumentError], [:"a\0b", "a", ArgumentError],
      ["hi".encode("UTF-16LE"), "h", ArgumentError],
      [1, nil, TypeError], [1.5, nil, TypeError], [true, nil, TypeError], [ODD, nil, TypeError], [["a"], nil, TypeError]
    ],
    :bool => [
      [true, true], [false, false], [nil, nil],
      [1, nil, TypeError], [0, nil, TypeError], ["true", nil, TypeError], [ODD, nil, TypeError]
    ]
  }.freeze

  TABLE.merge(Symbol => TABLE[String]).each do |type, lines|
    define_method(:"test_#{type.to_s.downcase}") do
      probe = Tracepoint.define(unique, { it: type })
      lines.each { |given, becomes, error| check(probe, given, becomes, error) }
    end
  end

  # Each row, even where operands cannot be observed.
  TABLE.merge(Symbol => TABLE[String]).each do |type, lines|
    define_method(:"test_strict_#{type.to_s.downcase}") do
      name = unique
      probe = Tracepoint.define(name, { it: type })
      span = Tracepoint.define_span(unique, { it: type })
      lines.each do |given, _becomes, error|
        assert_equal false, probe.fire(given)
        strictly do
          if error
            raised = assert_raises(error, given.inspect) { probe.fire(given) }
            assert_includes raised.message, "ruby_app:#{name}(it: #{type}): it"
            assert_raises(error) { span.measure(given) { flunk } }
          else
            assert_equal false, probe.fire(given)
            assert_equal 5, span.measure(given) { 5 }
          end
        end
      end
    end
  end

  def test_nan_is_not_nil
    probe = Tracepoint.define(unique, { it: Float })
    own = [0x7ff8726274726163].pack("Q").unpack1("D")

    assert_predicate operands_of(probe) { probe.fire(Float::NAN) }.first, :nan?
    assert_predicate operands_of(probe) { probe.fire(own) }.first, :nan?
  end

  def test_one_event_counts_once
    probe = Tracepoint.define(unique, [Integer, Integer])
    tapping(probe) do
      assert_equal(1, counting(:converted) { probe.fire("a", "b") })
      assert_equal(0, counting(:converted) { probe.fire(1, nil) })
    end
    assert_equal(0, counting(:converted) { probe.fire("a", "b") })
  end

  def test_long_strings
    probe = Tracepoint.define(unique, { it: String })
    long = "x" * 1_000_000

    assert_equal [long], operands_of(probe) { probe.fire(long) }
    assert_equal ["y" * 100_000], operands_of(probe) { probe.fire("#{"y" * 100_000}\0z") }
    strictly { assert_raises(ArgumentError) { probe.fire("#{"y" * 100_000}\0z") } }
  end

  def test_substrings
    probe = Tracepoint.define(unique, { it: String })
    long = "0123456789" * 100

    assert_equal [long[10, 500]], operands_of(probe) { probe.fire(long[10, 500]) }
    assert_equal [long[900..-1]], operands_of(probe) { probe.fire(long[900..-1]) }
    assert_equal ["012"], operands_of(probe) { probe.fire(long[0, 3]) }
  end

  # As created by an extension with rb_str_new_static.
  def test_strings_without_a_nul_behind_them
    needs_native
    skip TappedSite.why_not if TappedSite.why_not
    memory = Fiddle::Pointer.malloc(10_000)
    memory[0, 10_000] = "abcdefghij" * 1000
    make = Fiddle::Function.new(Fiddle.dlopen(nil)["rb_str_new_static"], [Fiddle::TYPE_VOIDP, Fiddle::TYPE_LONG], Fiddle::TYPE_VOIDP)
    probe = Tracepoint.define(unique, { it: String })
    # Copies live only during the call of the site, and the tap only keeps their address.
    # Only the counters of the call can be checked here.
    { 7 => 0, 4095 => 0, 4096 => 1, 9999 => 1 }.each do |length, converted|
      string = make.call(memory, length).to_value
      tapping(probe) { assert_equal converted, counting(:converted) { assert_equal true, probe.fire(string) } }
      assert_equal length, string.bytesize
    end
    strictly { assert_equal false, probe.fire(make.call(memory, 7).to_value) }
  end

  def test_nothing_of_the_program_is_called
    spy = Class.new(String) do
      %i[to_s to_str to_i inspect ==].each { |name| define_method(name) { |*| raise "called #{name}" } }
    end
    bare = Class.new(BasicObject) do
      def method_missing(name, *)
        ::Kernel.raise("called #{name}")
      end
    end
    probe = Tracepoint.define(unique, [String, Integer])

    assert_equal ["x", nil], operands_of(probe) { probe.fire(spy.new("x"), bare.new) }
  end

  private

  def check(probe, given, becomes, error)
    converted = counting(:converted) do
      got = operands_of(probe) { probe.fire(given) }
      expected = [becomes.is_a?(String) ? becomes.b : becomes]
      got = got.map { |value| value.is_a?(String) ? value.b : value }
      assert_equal expected, got, given.inspect
    end
    assert_equal error ? 1 : 0, converted, given.inspect
  end
end
