# frozen_string_literal: true

require "test_helper"

class FireTest < Minitest::Test
  def test_untraced
    name = unique
    probe = Tracepoint.define(name, { id: Integer, sku: String })

    assert_equal false, probe.fire(1, "x")
    assert_equal false, Tracepoint.fire(name, 1, "x")
    assert_equal false, Tracepoint.fire(name.to_sym, 1, "x")
    assert_equal false, Tracepoint.fire("ruby_app:#{name}", 1, "x")
    assert_equal false, Tracepoint.fire(:"ruby_app:#{name}", 1, "x")
    refute Tracepoint.enabled?(name)
    refute Tracepoint.enabled?("nobody:#{name}")
  end

  def test_traced
    name = unique
    probe = Tracepoint.define(name, { id: Integer, sku: String }, provider: :shop)
    tapping(probe) do |tap|
      assert_predicate probe, :enabled?
      assert Tracepoint.enabled?("shop:#{name}")
      refute Tracepoint.enabled?(name)
      assert_equal true, probe.fire(1, "one")
      assert_equal [1, "one"], [tap.value(0, Integer), tap.value(1, String)]
      assert_equal true, Tracepoint.fire("shop:#{name}", 2, "two")
      assert_equal [2, "two"], [tap.value(0, Integer), tap.value(1, String)]
      assert_equal true, probe.fire { [3, "three"] }
      assert_equal [3, "three"], [tap.value(0, Integer), tap.value(1, String)]
      assert_equal 3, tap.hits
    end
    refute_predicate probe, :enabled?
    assert_equal false, probe.fire(1, "one")
  end

  def test_by_symbol_that_once_was_dynamic
    name = unique("dynamic")
    name.to_sym
    GC.start
    probe = Tracepoint.define(name, { id: Integer })
    assert_equal 7, operands_of(probe) { Tracepoint.fire(name.to_sym, 7) }.first
  end

  def test_by_name_whatever_the_string_is
    name = unique("by_name")
    probe = Tracepoint.define(name, { id: Integer }, provider: :shop)
    mutable = +"shop:#{name}"
    [mutable, "shop:#{name}".freeze, "shop:#{name}".b, "shop:#{name}".encode("ISO-8859-1"), Class.new(String).new("shop:#{name}"),
     "xshop:#{name}y"[1..-2], :"shop:#{name}"].each do |text|
      assert_equal [7], operands_of(probe) { Tracepoint.fire(text, 7) }
      assert_equal 1, counting(:dropped) { Tracepoint.fire(text.to_s.encode("UTF-16LE"), 7) }
    end
    mutable << "_other"
    assert_equal false, Tracepoint.fire(mutable, "x")
    assert_equal [String], Tracepoint::Provider[:shop]["#{name}_other"].operands.values
  end

  # Two bytes that form one character.
  def test_bytes_of_another_encoding
    Tracepoint.define("ab")
    refute_includes Tracepoint.probes.map(&:name), :ac
    assert_equal(1, counting(:dropped) { Tracepoint.fire("ab".dup.force_encoding("UTF-16LE"), 1) })
  end

  def test_twelve_operands
    probe = Tracepoint.define(unique, [Integer, String, Symbol, Float, :bool, Integer, String, Symbol, Float, :bool, Integer, String])
    values = [1, "two", :three, 4.5, true, -6, "seven", :eight, -9.25, false, 11, "twelve"]
    expected = values.map { |value| value.is_a?(Symbol) ? value.to_s : value }

    assert_equal expected, operands_of(probe) { probe.fire(*values) }
    assert_equal [nil] * 12, operands_of(probe) { probe.fire(*[nil] * 12) }
    assert_equal expected, operands_of(probe) { probe.fire { values } }
  end

  def test_every_number_of_operands
    (0..12).each do |count|
      probe = Tracepoint.define(unique, [Integer] * count)
      values = Array.new(count) { |i| (i + 1) * 1_000_003 }
      assert_equal values, operands_of(probe) { probe.fire(*values) }
    end
  end

  def test_wrong_number
    name = unique
    probe = Tracepoint.define(name, { id: Integer, sku: String })
    calls = [-> { probe.fire }, -> { probe.fire(1) }, -> { probe.fire(1, "x", 2) },
             -> { Tracepoint.fire(name) }, -> { Tracepoint.fire(name.to_sym, 1) }, -> { probe.fire(1) { [1, "x"] } }]
    check = lambda do
      calls.each do |call|
        error = assert_raises(ArgumentError, &call)
        what = "wrong number of arguments for ruby_app:#{name}(id: Integer, sku: String)"
        assert_match(/\A#{Regexp.escape(what)} \(given \d, expected 2\)\z/, error.message)
      end
    end
    check.call
    strictly(&check)
    tapping(probe) { check.call } if Tracepoint.supported?
    assert_raises(ArgumentError) { Tracepoint.fire }
  end

  def test_block_needs_a_definition
    name = unique
    error = assert_raises(ArgumentError) { Tracepoint.fire(name) { [1] } }

    assert_includes error.message, "Tracepoint.define"
    assert_empty Tracepoint.probes.select { |probe| probe.name == name.to_sym }
  end

  def test_block_runs_only_when_traced
    name = unique
    probe = Tracepoint.define(name, { id: Integer })
    ran = 0
    assert_equal false, probe.fire { [ran += 1] }
    assert_equal false, Tracepoint.fire(name) { [ran += 1] }
    assert_equal 0, ran
    assert_equal [1], operands_of(probe) { probe.fire { [ran += 1] } }
    assert_equal [2], operands_of(probe) { Tracepoint.fire(name) { [ran += 1] } }
    assert_equal [9], operands_of(probe) { probe.fire { 9 } }
    assert_equal [9], operands_of(probe) { probe.fire { next 9 } }
  end

  def test_block_is_ignored_beside_arguments
    probe = Tracepoint.define(unique, { id: Integer })

    assert_equal [1], operands_of(probe) { probe.fire(1) { flunk } }
  end

  def test_block_that_raises_costs_the_event
    probe = Tracepoint.define(unique, { id: Integer })
    tapping(probe) do |tap|
      assert_equal 1, counting(:dropped) { assert_equal false, probe.fire { raise "no" } }
      assert_equal 1, counting(:dropped) { assert_equal false, probe.fire { [1, 2] } }
      assert_equal 1, counting(:dropped) { assert_equal false, probe.fire { [] } }
      [NotImplementedError, LoadError, SystemStackError].each do |error|
        assert_equal 1, counting(:dropped) { assert_equal false, probe.fire { raise error } }
      end
      endless = -> { endless.call + 1 }
      assert_equal 1, counting(:dropped) { assert_equal false, probe.fire { endless.call } }
      assert_nil $!
      assert_equal 0, tap.hits
      assert_equal true, probe.fire(1)
      strictly do
        assert_raises(RuntimeError) { probe.fire { raise "no" } }
        assert_raises(NotImplementedError) { probe.fire { raise NotImplementedError } }
        assert_raises(ArgumentError) { probe.fire { [1, 2] } }
      end
    end
  end

  def test_what_else_leaves_a_block_goes_through
    probe = Tracepoint.define(unique, { id: Integer })
    tapping(probe) do |tap|
      assert_equal 5, catch(:out) { probe.fire { throw :out, 5 } }
      assert_equal 6, probe.fire { break 6 }
      assert_raises(SystemExit) { probe.fire { exit } }
      assert_raises(Interrupt) { probe.fire { raise Interrupt } }
      assert_raises(NoMemoryError) { probe.fire { raise NoMemoryError } }
      reached = false
      thread = Thread.new do
        probe.fire { Thread.current.kill }
        reached = true
      end
      thread.join
      refute reached
      assert_equal 0, tap.hits
    end
  end

  def test_strict_runs_blocks_untraced
    probe = Tracepoint.define(unique, { id: Integer })
    strictly do
      ran = false
      assert_equal false, probe.fire { [ran = 1] }
      assert ran
      refute_predicate probe, :enabled?
      assert_raises(ArgumentError) { probe.fire { [1, 2] } }
      assert_raises(RuntimeError) { probe.fire { raise "no" } }
      later = Tracepoint.define(unique, { id: Integer })
      assert_raises(TypeError) { later.fire("x") }
      assert_equal false, later.fire(1)
      assert_equal false, later.fire(nil)
    end
    assert_equal false, probe.fire("x")
  end

  # Operands; a block's value; the error of strict mode.
  BLOCKS = [
    [[Integer], nil, false], [[Integer], [nil], false], [[Integer], [], ArgumentError], [[Integer], [1, 2], ArgumentError],
    [[Integer], { a: 1 }, TypeError], [[Integer], { a: 1, b: 2 }, TypeError], [[Integer], {}, TypeError],
    [[Integer], 1..3, TypeError], [[Integer], [[1]], TypeError], [[Integer], Class.new(Array).new([1]), false],
    [[Integer], Struct.new(:id).new(1), TypeError], [[Integer], 2**70, RangeError],
    [[Integer, Integer], nil, ArgumentError], [[Integer, Integer], 1, ArgumentError],
    [[Integer, Integer], { a: 1, b: 2 }, ArgumentError], [[Integer, Integer], 1..2, ArgumentError],
    [[Integer, Integer], [1, 2], false],
    [[], nil, false], [[], [], false], [[], [1, 2], false], [[], 5, false], [[], { a: 1 }, false], [[], "text", false]
  ].freeze

  def test_what_a_block_returns
    strictly do
      BLOCKS.each do |types, value, expected|
        probe = Tracepoint.define(unique, types)
        what = "#{types} given #{value.inspect}"
        if expected
          error = assert_raises(expected, what) { probe.fire { value } }
          assert_match(/\(given \d, expected #{types.size}\)/, error.message, what) if expected == ArgumentError
        else
          assert_equal false, probe.fire { value }, what
        end
      end
    end
  end

  def test_a_probe_without_operands_ignores_what_its_block_returns
    probe = Tracepoint.define(unique)
    tapping(probe) do |tap|
      dropped = counting(:dropped) do
        [nil, [], [1, 2], 5, { a: 1 }].each { |value| assert_equal true, probe.fire { value } }
        assert_equal 5, tap.hits
      end
      assert_equal 0, dropped
      assert_equal 1, counting(:dropped) { assert_equal false, probe.fire { raise "no" } }
      assert_equal 5, tap.hits
    end
  end

  def test_in_a_signal_handler
    name = unique
    seen = nil
    before = trap(:USR2) do
      seen = [Tracepoint.fire(name, 1), Tracepoint.fire(name, 2), Tracepoint.define(name, [Integer]).fire(3),
              Tracepoint.span("#{name}_span") { 4 }]
    end
    Process.kill(:USR2, Process.pid)
    Thread.pass until seen
    assert_equal [false, false, false, 4], seen
  ensure
    trap(:USR2, before || "DEFAULT")
  end
end
