# frozen_string_literal: true

require "test_helper"

class AllocationTest < Minitest::Test
  SKU = "sku-1"
  BIG = 2**63
  FLOAT = 1.5

  def setup
    needs_native
    @probe = Tracepoint.define(unique, [Integer, String, Symbol, Float, :bool])
    @name = @probe.name
    @span = Tracepoint.define_span(unique, [Integer, String])
    @span_name = @span.name
    @with_result = Tracepoint.define_span(unique, [Integer], result: { status: Integer })
    @values = [1, SKU, :sym, FLOAT, true].freeze
  end

  def test_untraced
    assert_no_objects { @probe.fire(1, SKU, :sym, FLOAT, true) }
    assert_no_objects { @probe.fire { [1, SKU, :sym, FLOAT, true] } }
    assert_no_objects { @probe.enabled? }
    assert_no_objects { Tracepoint.fire(@name, 1, SKU, :sym, FLOAT, true) }
    assert_no_objects { Tracepoint.enabled?(@name) }
    assert_no_objects { @span.measure(1, SKU) { nil } }
    assert_no_objects { Tracepoint.span(@span_name, 1, SKU) { nil } }
    assert_no_objects { @with_result.measure(1) { |span| span[:status] = 200 } }
    assert_no_objects { @with_result.start(1).finish }
  end

  def test_traced
    tapping(@probe) do |tap|
      assert_no_objects { @probe.fire(1, SKU, :sym, FLOAT, true) }
      assert_no_objects { Tracepoint.fire(@name, 1, SKU, :sym, FLOAT, true) }
      assert_no_objects { @probe.fire { @values } }
      assert_no_objects { @probe.fire(BIG, :sym, SKU, 3, nil) }
      assert_no_objects { @probe.fire(FLOAT, 3, FLOAT, BIG, SKU) }
      assert_operator tap.hits, :>=, 5_000
    end
    tapping(@span) do |first, last|
      assert_no_objects { @span.measure(1, SKU) { nil } }
      assert_no_objects { Tracepoint.span(@span_name, 1, SKU) { nil } }
      assert_equal first.hits, last.hits
    end
  end

  def test_names_that_are_not_there_make_no_symbols
    before = Symbol.all_symbols.size
    100.times { |i| Tracepoint.enabled?("nobody:never_#{i}_defined") }

    assert_in_delta before, Symbol.all_symbols.size, 5
  end

  def test_memory_stays
    tapping(@probe) do
      fires = -> { 20_000.times { @probe.fire(1, SKU, :sym, FLOAT, true) } }
      fires.call
      before = resident
      5.times { fires.call }
      assert_operator resident - before, :<, 2_000, "kB"
    end
  end

  private

  def resident
    GC.start
    File.read("/proc/self/status")[/VmRSS:\s+(\d+)/, 1].to_i
  end
end
