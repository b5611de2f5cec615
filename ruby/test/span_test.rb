# frozen_string_literal: true

require "test_helper"

class SpanTest < Minitest::Test
  RETURNED = 0
  RAISED = 1
  THROWN = 2

  def setup
    @name = unique("span")
    @span = Tracepoint.define_span(@name, { id: Integer, sku: String })
  end

  def test_value_of_the_block
    assert_equal 5, @span.measure(1, "x") { 5 }
    assert_equal 5, Tracepoint.span(@name, 1, "x") { 5 }
    assert_equal 5, Tracepoint.span(@name.to_sym, 1, "x") { 5 }
    assert_equal 5, Tracepoint.span("ruby_app:#{@name}", 1, "x") { 5 }
    assert_nil @span.measure(1, "x") {}
    assert_equal [1, 2], @span.measure(1, "x") { next 1, 2 }
    refute_predicate @span, :enabled?
  end

  def test_wrong_number
    assert_raises(ArgumentError) { @span.measure { flunk } }
    assert_raises(ArgumentError) { @span.measure(1, "x", 2) { flunk } }
    assert_raises(ArgumentError) { Tracepoint.span(@name, 1) { flunk } }
    assert_raises(ArgumentError) { Tracepoint.span }
  end

  def test_without_a_block
    assert_raises(LocalJumpError) { @span.measure(1, "x") }
    assert_raises(LocalJumpError) { Tracepoint.span(@name, 1, "x") }
    name = unique
    assert_raises(LocalJumpError) { Tracepoint.span(name, 1) }
    assert_empty Tracepoint.probes.select { |entry| entry.name == name.to_sym }
    traced { |first, _last| [assert_raises(LocalJumpError) { @span.measure(1, "x") }, assert_equal(0, first.hits)] }
  end

  def test_declared_by_its_first_use
    name = unique
    assert_equal 3, Tracepoint.span("shop:#{name}", 1, "x") { 3 }
    span = Tracepoint::Provider[:shop][name]

    assert_instance_of Tracepoint::Span, span
    assert_equal [Integer, String], span.operands.values
  end

  def test_both_probes
    traced do |first, last|
      assert_predicate @span, :enabled?
      assert Tracepoint.enabled?(@name)
      result = @span.measure(42, "sku") do
        assert_equal [1, 42, "sku"], [first.hits, first.value(0, Integer), first.value(1, String)]
        assert_equal 0, last.hits
        sleep 0.002
        :done
      end
      assert_equal :done, result
      assert_equal [1, 1], [first.hits, last.hits]
      assert_equal [RETURNED, 42, "sku"], [last.value(1, Integer), last.value(2, Integer), last.value(3, String)]
      assert_operator last.value(0, Integer), :>=, 2_000_000
    end
  end

  def test_ten_operands
    span = Tracepoint.define_span(unique, [Integer] * 10)
    tapping(span) do |first, last|
      span.measure(*1..10) { nil }
      assert_equal [*1..10], Array.new(10) { |i| first.value(i, Integer) }
      assert_equal [*1..10], Array.new(10) { |i| last.value(i + 2, Integer) }
    end
  end

  def test_only_the_end_is_traced
    needs_taps
    _first, last = registry.sites(@span)
    tap = TappedSite.new(last)
    @span.measure(1, "x") { sleep 0.001 }
    assert_operator tap.value(0, Integer), :>=, 1_000_000
  ensure
    tap&.close
  end

  def test_a_tracer_comes_meanwhile
    needs_taps
    tap = nil
    @span.measure(1, "x") { tap = TappedSite.new(registry.sites(@span).last) }
    assert_equal [1, -1, RETURNED], [tap.hits, tap.value(0, Integer), tap.value(1, Integer)]
  ensure
    tap&.close
  end

  def test_a_tracer_comes_meanwhile_to_one_that_does_not_return
    needs_taps
    tap = nil
    assert_raises(RuntimeError) { @span.measure(1, "x") { raise "boom" if (tap = TappedSite.new(registry.sites(@span).last)) } }
    assert_equal 0, tap.hits
    tap.close
    catch(:out) { @span.measure(1, "x") { throw :out if (tap = TappedSite.new(registry.sites(@span).last)) } }
    assert_equal 0, tap.hits
  ensure
    tap&.close
  end

  def test_a_tracer_goes_meanwhile
    needs_taps
    tap = TappedSite.new(registry.sites(@span).last)
    assert_equal 5, @span.measure(1, "x") { [tap.close, 5].last }
  end

  def test_raise
    traced do |_, last|
      error = assert_raises(RuntimeError) { @span.measure(1, "x") { raise "boom" } }
      assert_equal "boom", error.message
      assert_equal [1, RAISED], [last.hits, last.value(1, Integer)]
      assert_raises(SystemExit) { @span.measure(1, "x") { exit } }
      assert_equal [2, RAISED], [last.hits, last.value(1, Integer)]
    end
  end

  def test_throw_break_return_next
    traced do |_, last|
      assert_equal 3, catch(:out) { @span.measure(1, "x") { throw :out, 3 } }
      assert_equal [1, THROWN], [last.hits, last.value(1, Integer)]
      assert_equal 4, @span.measure(1, "x") { break 4 }
      assert_equal [2, THROWN], [last.hits, last.value(1, Integer)]
      assert_equal 5, returning
      assert_equal [3, THROWN], [last.hits, last.value(1, Integer)]
      assert_equal 6, @span.measure(1, "x") { next 6 }
      assert_equal [4, RETURNED], [last.hits, last.value(1, Integer)]
    end
  end

  def test_while_an_exception_is_being_handled
    traced do |_, last|
      begin
        raise "outer"
      rescue RuntimeError
        @span.measure(1, "x") { nil }
        assert_equal RETURNED, last.value(1, Integer)
        catch(:out) { @span.measure(1, "x") { throw :out } }
        assert_equal THROWN, last.value(1, Integer)
        assert_equal "outer", $!.message
      end
      @span.measure(1, "x") do
        raise "inner"
      rescue RuntimeError
        nil
      end
      assert_equal RETURNED, last.value(1, Integer)
    end
  end

  def test_killed_thread
    traced do |_, last|
      Thread.new { @span.measure(1, "x") { Thread.current.kill } }.join
      assert_equal [1, THROWN], [last.hits, last.value(1, Integer)]
    end
  end

  def test_ends_once_each_when_nested
    traced do |first, last|
      fold = ->(depth) { depth.zero? ? 0 : @span.measure(depth, "x") { fold.call(depth - 1) + 1 } }
      assert_equal 50, fold.call(50)
      assert_equal [50, 50], [first.hits, last.hits]
      assert_equal 50, last.value(2, Integer)
    end
  end

  def test_arguments_changed_by_the_block
    traced do |_, last|
      text = +"before"
      assert_equal(1, counting(:converted) { @span.measure(1, text) { text << "\0after" } })
      assert_equal "before", last.value(3, String)
    end
  end

  def test_strict_never_raises_at_the_end
    strictly do
      traced do |_, last|
        text = +"before"
        assert_equal 1, @span.measure(1, text) { [1, text << "\0after"].first }
        assert_equal 1, last.hits
        assert_raises(TypeError) { @span.measure("x", "x") { flunk } }
      end
    end
  end

  def test_fibers
    traced do |first, last|
      fibers = Array.new(3) { |i| Fiber.new { @span.measure(i, "x") { Fiber.yield(i) } } }
      fibers.each(&:resume)
      assert_equal [3, 0], [first.hits, last.hits]
      fibers.each(&:resume)
      assert_equal [3, 3], [first.hits, last.hits]
    end
  end

  private

  def traced(&block)
    tapping(@span, &block)
  end

  def returning
    @span.measure(1, "x") { return 5 }
    flunk
  end
end
