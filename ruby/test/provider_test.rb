# frozen_string_literal: true

require "test_helper"

class ProviderTest < Minitest::Test
  def setup
    @name = unique("provider")
    @probe = Tracepoint.define(:one, { id: Integer }, provider: @name)
    @span = Tracepoint.define_span(:two, {}, provider: @name)
    @provider = Tracepoint::Provider[@name]
  end

  def test_lookup
    assert_equal @name.to_sym, @provider.name
    assert_same @provider, Tracepoint::Provider[@name.to_sym]
    assert_same @provider, @probe.provider
    assert_includes Tracepoint::Provider.all, @provider
    assert_nil Tracepoint::Provider[unique("nobody")]
    assert_equal [@probe, @span], @provider.probes
    assert_same @probe, @provider[:one]
    assert_same @span, @provider["two"]
    assert_nil @provider[:three]
    assert_equal "#<Tracepoint::Provider #{@name}>", @provider.inspect
    assert_predicate @provider, :frozen?
  end

  def test_disable
    assert_predicate @provider, :enabled?
    assert_same @provider, @provider.disable
    refute_predicate @provider, :enabled?
    assert_includes @provider.inspect, "(disabled)"
    assert_equal false, @probe.fire(1)
    assert_raises(ArgumentError) { @probe.fire }
    assert_equal 3, @span.measure { 3 }
    assert_same @provider, @provider.enable
    assert_predicate @provider, :enabled?
  end

  def test_disabled_reads_as_untraced
    tapping(@probe) do |tap|
      @provider.disable
      refute_predicate @probe, :enabled?
      assert_equal false, @probe.fire(1)
      assert_equal false, @probe.fire { flunk }
      assert_equal 0, tap.hits
      @provider.enable
      assert_equal true, @probe.fire(1)
      assert_equal 1, tap.hits
    end
  end

  def test_disabled_span
    tapping(@span) do |first, last|
      @provider.disable
      @span.measure { nil }
      @provider.enable
      assert_equal [0, 0], [first.hits, last.hits]
      @span.measure { nil }
      assert_equal [1, 1], [first.hits, last.hits]
    end
  end

  def test_defined_while_disabled
    @provider.disable
    probe = Tracepoint.define(:three, {}, provider: @name)
    tapping(probe) do |tap|
      assert_equal false, probe.fire
      @provider.enable
      assert_equal true, probe.fire
      assert_equal 1, tap.hits
    end
  ensure
    @provider.enable
  end

  def test_disabled_and_strict
    @provider.disable
    strictly do
      assert_raises(TypeError) { @probe.fire("x") }
      tapping(@probe) { |tap| [assert_equal(false, @probe.fire(1)), assert_equal(0, tap.hits)] } if Tracepoint.supported?
    end
  ensure
    @provider.enable
  end
end
