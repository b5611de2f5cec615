# frozen_string_literal: true

require "test_helper"

# Ruby's own TracePoint, whose name differs from ours by one letter.
class CoreTracePointTest < Minitest::Test
  EVENTS = %i[line call return c_call c_return b_call b_return raise].freeze

  def test_they_are_two
    refute_same TracePoint, Tracepoint
    assert_instance_of Class, TracePoint
    assert_instance_of Module, Tracepoint
  end

  def test_methods_of_the_core_class
    %i[new trace].each do |name|
      error = assert_raises(NoMethodError) { Tracepoint.public_send(name, :call) {} }
      assert_match(/no method '#{name}': Ruby's own class is TracePoint/, error.message)
      assert_equal [name, Tracepoint], [error.name, error.receiver]
      refute_respond_to Tracepoint, name
    end
    assert_match(/undefined method [`']nothing'/, assert_raises(NoMethodError) { Tracepoint.nothing }.message)
  end

  def test_ours_under_the_core_class
    probe = Tracepoint.define(unique, { id: Integer })
    span = Tracepoint.define_span(unique, { id: Integer })
    seen = Hash.new(0)
    results = TracePoint.new(*EVENTS) { |event| seen[event.event] += 1 }.enable do
      [probe.fire(1), Tracepoint.fire(unique, 1, "x"), span.measure(1) { 5 }, catch(:out) { span.measure(1) { throw :out, 6 } },
       (span.measure(1) { raise "boom" } rescue 7)]
    end
    assert_equal [false, false, 5, 6, 7], results
    assert_equal EVENTS.sort, (seen.keys & EVENTS).sort
  end

  # Probes may fire in its hooks, even while a traced span runs.
  def test_ours_in_a_hook_of_the_core_class
    probe = Tracepoint.define(unique, { event: Symbol, line: Integer })
    span = Tracepoint.define_span(unique, { id: Integer })
    tapping(probe) do |fired|
      tapping(span) do |_, ended|
        hook = TracePoint.new(:raise) { |event| probe.fire(event.event, event.lineno) }
        hook.enable { assert_raises(RuntimeError) { span.measure(1) { raise "boom" } } }
        assert_equal [1, "raise"], [fired.hits, fired.value(0, Symbol)]
        assert_equal [1, 1], [ended.hits, ended.value(1, Integer)]
      end
    end
  end

  # An exception that a hook raises leaves a span like any other.
  def test_a_hook_that_raises
    span = Tracepoint.define_span(unique, { id: Integer })
    tapping(span) do |_, ended|
      hook = TracePoint.new(:line) { |event| raise "hook" if event.path == __FILE__ && event.method_id == :stop_here }
      hook.enable { assert_raises(RuntimeError) { span.measure(1) { stop_here } } }
      assert_equal [1, 1], [ended.hits, ended.value(1, Integer)]
    end
  end

  private

  def stop_here
    Integer("1")
  end
end
