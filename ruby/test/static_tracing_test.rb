# frozen_string_literal: true

require "test_helper"
previous = trap("PROF") { StaticTracingTest.signals << :before }
require "tracepoint/static_tracing"

# The examples of ruby-static-tracing, rewritten for its interface here.
class StaticTracingTest < Minitest::Test
  class << self
    def signals
      @signals ||= []
    end
  end

  def setup
    StaticTracing.configure { |configuration| configuration.mode = StaticTracing::Configuration::Modes::SIGNAL }
    StaticTracing.disable!
  end

  def test_a_tracepoint
    provider, probe = tick
    refute probe.enabled?
    assert_equal [Integer, String], probe.args
    assert_same probe, StaticTracing::Tracepoint.fetch(provider.namespace, "tick")
    assert_same probe, provider.add_tracepoint("tick", Integer, String)
    assert_equal [false, 0, true, 1], firing(probe, provider)
  end

  def test_probes_after_enable
    provider = StaticTracing::Provider.register(unique("clock"))
    provider.enable
    probe = provider.add_tracepoint("late", Integer, String)
    tapping(entry(probe)) { assert probe.fire(1, "x") }
    provider.disable
    later = provider.add_tracepoint("later")
    tapping(entry(later)) { refute later.fire }
  end

  def test_mistakes
    provider, probe = tick
    assert_raises(StaticTracing::Tracepoint::InvalidArgumentError) { probe.fire(1) }
    assert_raises(StaticTracing::Tracepoint::InvalidArgumentError) { probe.fire("1", 1) }
    assert_raises(StaticTracing::Tracepoint::InvalidArgType) { StaticTracing::Tracepoint.new("clock", "bad", Float) }
    assert_raises(StaticTracing::Provider::ProviderMissingError) { StaticTracing::Provider.fetch("absent") }
    assert_raises(StaticTracing::Tracepoint::TracepointMissingError) { StaticTracing::Tracepoint.fetch(provider.namespace, "no") }
    assert provider.destroy
    assert_raises(StaticTracing::Provider::ProviderMissingError) { StaticTracing::Provider.fetch(provider.namespace) }
  end

  def test_the_signal_toggles_and_the_handler_before_is_called
    _, probe = tick
    self.class.signals.clear
    tapping(entry(probe)) do
      fired = Array.new(3) do
        probe.fire(1, "x").tap { signal }
      end
      assert_equal [false, true, false], fired
    end
    assert StaticTracing.enabled?
    assert_equal [:before] * 3, self.class.signals
  end

  def test_modes
    StaticTracing.configure { |configuration| configuration.mode = StaticTracing::Configuration::Modes::ON }
    assert StaticTracing.enabled?
    signal
    assert StaticTracing.enabled?
    StaticTracing.configure { |configuration| configuration.mode = StaticTracing::Configuration::Modes::OFF }
    refute StaticTracing.enabled?
    assert_raises(ArgumentError) { StaticTracing.configure { |configuration| configuration.mode = "MAYBE" } }
    StaticTracing.toggle_tracing!
    assert StaticTracing.enabled?
  end

  def test_latency_of_a_class
    kind = fresh do
      def noop; "noop"; end
    end
    StaticTracing.configure { |configuration| configuration.add_tracer(StaticTracing::Tracer::Latency, kind, :noop) }
    span = Tracepoint::Methods.spans(kind).first
    tapping(span) do |_, second|
      assert_equal "noop", kind.new.noop
      assert_equal 0, second.hits
      StaticTracing.enable!
      assert_equal "noop", kind.new.noop
      assert_equal 1, second.hits
    end
  end

  def test_concerns
    kind = fresh do
      def noop; end
      include StaticTracing::Tracer::Concerns::Stack
    end
    assert_equal [{ stack: String }], Tracepoint::Methods.spans(kind).map(&:operands)
  end

  def test_nsec
    assert_in_delta Process.clock_gettime(Process::CLOCK_MONOTONIC), StaticTracing.nsec / 1e9, 5
  end

  private

  def tick
    provider = StaticTracing::Provider.register(unique("clock"))
    [provider, StaticTracing::Tracepoint.new(provider.namespace, "tick", Integer, String)]
  end

  def entry(probe)
    Tracepoint::Provider[probe.provider_name][probe.name]
  end

  # Return the results of fire before and after enable, with the hits.
  def firing(probe, provider)
    tapping(entry(probe)) do |tap|
      before = [probe.fire(1, "tock"), tap.hits]
      provider.enable
      return before + [probe.fire(2, "tock"), tap.hits]
    end
  end

  def signal
    count = self.class.signals.size
    Process.kill("PROF", $$)
    Thread.pass until self.class.signals.size > count
  end

  def fresh(&body)
    kind = Class.new
    self.class.const_set(unique("Static"), kind)
    kind.class_eval(&body)
    kind
  end
end
Minitest.after_run { trap("PROF", previous || "DEFAULT") }
