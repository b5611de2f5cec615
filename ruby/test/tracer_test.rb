# frozen_string_literal: true

require "test_helper"

# Tracers: arguments of the spans of methods.
class TracerTest < Minitest::Test
  class Owner < Tracepoint::Tracer
    def self.arguments(_names)
      { owner: String, count: Integer }
    end

    def self.values(receiver, given)
      [receiver.owner, given.fetch(:cents)]
    end
  end

  class Failing < Tracepoint::Tracer
    def self.arguments(_names)
      { one: String, two: String }
    end

    def self.values(_receiver, given)
      given.empty? ? raise("on purpose") : ["one"]
    end
  end

  def test_latency
    kind = fresh { def m(a); a; end }
    assert_equal :m, Tracepoint::Tracer::Latency.register(kind, :m)
    assert_equal({}, span.operands)
    tapping(span) do |_, second|
      assert_equal 3, kind.new.m(3)
      assert_operator second.value(0, Integer), :>, 0
    end
    assert_equal [:m], Tracepoint::Tracer::Latency.unregister(kind, :m)
  end

  def test_all_public_methods
    kind = fresh do
      def a; end
      def b; end

      private

      def c; end
    end
    assert_equal %i[a b], Tracepoint::Tracer::Latency.register(kind).sort
  end

  def test_stack
    kind = fresh { def m; end }
    Tracepoint::Tracer::Stack.register(kind, :m)
    lines = begin_of { kind.new.m }.first.lines
    assert_match(/tracer_test\.rb:#{__LINE__ - 1}:in .*test_stack/, lines.first)
    assert_operator lines.size, :>, 3
  end

  def test_arguments
    kind = fresh { def m(a, b = 2, *rest, k: 1, **others); [a, b, rest, k, others]; end }
    Tracepoint::Tracer::Arguments.register(kind, :m)
    assert_equal %i[a b rest k others], span.operands.keys
    assert_equal ["1", nil, "[]", nil, "{}"], (begin_of { kind.new.m(1) })
    assert_equal ["text", "symbol", "[3]", "[1]"], (begin_of { kind.new.m("text", :symbol, 3, k: [1]) }).first(4)
  end

  def test_own
    kind = fresh { def m(cents); cents; end; def owner; "tea"; end }
    Owner.register(kind, :m)
    assert_equal ["tea", 7], (begin_of { kind.new.m(7) })
  end

  def test_one_that_fails
    kind = fresh { def m; :value; end; def n(a); a; end }
    Failing.register(kind, :m)
    assert_equal [nil, nil], (begin_of { assert_equal :value, kind.new.m })
    strictly { assert_raises(RuntimeError) { kind.new.m } }
    Failing.register(kind, :n)
    assert_equal [nil, nil], (begin_of { assert_equal 1, kind.new.n(1) })
  end

  def test_one_tracer_a_method
    kind = fresh { def m; end }
    Tracepoint::Tracer::Latency.register(kind, :m)
    assert_raises(Tracepoint::DefinitionError) { Tracepoint::Tracer::Stack.register(kind, :m) }
  end

  def test_concerns
    kind = fresh do
      def m(a); a; end
      include Tracepoint::Concerns::Arguments

      def later; end
    end
    assert_equal({ a: String }, span.operands)
    assert_equal ["5"], (begin_of { kind.new.m(5) })
    assert_equal [:m], kind.untrace
    %i[Latency Stack].each do |name|
      fresh do
        def m; end
        include Tracepoint::Concerns.const_get(name)
      end
      assert_equal :m, span.name
    end
  end

  private

  def fresh(&body)
    kind = Class.new { extend Tracepoint::Methods }
    self.class.const_set(unique("Traced"), kind)
    kind.class_eval(&body)
    kind
  end

  def span
    Tracepoint.probes.last
  end

  # Return the arguments of the only event of the span's first probe.
  def begin_of
    entry = span
    tapping(entry) do |first, _|
      yield
      assert_equal 1, first.hits
      return entry.operands.values.each_with_index.map { |type, i| first.value(i, type) }
    end
  end
end
