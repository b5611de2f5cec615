# frozen_string_literal: true

require "test_helper"

# Spans with results, and spans that begin and end in different methods.
class ResultTest < Minitest::Test
  RETURNED = 0
  RAISED = 1
  THROWN = 2

  def setup
    @name = unique("span")
    @span = Tracepoint.define_span(@name, { method: String }, result: { route: String, status: Integer })
  end

  def test_definition
    assert_equal [{ method: String }, { route: String, status: Integer }], [@span.operands, @span.results]
    assert_equal "ruby_app:#{@name}(method: String) -> (route: String, status: Integer)", @span.to_s
    assert_same @span, Tracepoint.define_span(@name, { method: String }, result: { route: String, status: Integer })
    assert_empty Tracepoint.define_span(unique).results
    assert_empty Tracepoint.define(unique).results
  end

  def test_other_results_are_another_definition
    [{}, { route: String }, { route: String, status: String }, { path: String, status: Integer }].each do |result|
      error = assert_raises(Tracepoint::DefinitionError) { Tracepoint.define_span(@name, { method: String }, result: result) }
      assert_match(/there is a span #{Regexp.escape(@span.to_s)},/, error.message)
    end
  end

  def test_ten_in_all
    operands = (1..4).to_h { |i| ["a#{i}", Integer] }
    span = Tracepoint.define_span(unique, operands, result: (1..6).to_h { |i| ["r#{i}", Integer] })
    tapping(span) do |first, last|
      span.measure(1, 2, 3, 4) { |it| (1..6).each { |i| it[:"r#{i}"] = 10 + i } }
      assert_equal [1, 2, 3, 4], Array.new(4) { |i| first.value(i, Integer) }
      assert_equal [1, 2, 3, 4, 11, 12, 13, 14, 15, 16], Array.new(10) { |i| last.value(i + 2, Integer) }
    end
    seven = (1..7).to_h { |i| ["r#{i}", Integer] }
    refused("at most 10 arguments and results, not 11") { Tracepoint.define_span(unique, operands, result: seven) }
  end

  def test_bad_definitions
    refused("duplicate argument names: id, id") { Tracepoint.define_span(unique, { id: Integer }, result: { id: Integer }) }
    refused("a span already has an argument outcome") { Tracepoint.define_span(unique, {}, result: { outcome: Integer }) }
    refused(/an argument's type must be .* not Array/) { Tracepoint.define_span(unique, {}, result: { id: Array }) }
    assert_raises(TypeError) { Tracepoint.define_span(unique, {}, result: [Integer]) }
    error = assert_raises(ArgumentError) { Tracepoint.define(unique, {}, result: { id: Integer }) }
    assert_equal "unknown keyword: :result", error.message
    error = assert_raises(ArgumentError) { Tracepoint.define_span(:x, id: Integer, result: { status: Integer }) }
    assert_match(/Tracepoint\.define_span\(:x, {id: Integer}, result: {.*status.*Integer}\)\z/, error.message)
  end

  def test_results_at_the_end_alone
    traced do |first, last|
      result = @span.measure("GET") do |span|
        assert_instance_of Tracepoint::Measurement, span
        assert_equal [1, 0], [first.hits, last.hits]
        span[:status] = 404
        span[:status] = 200
        :done
      end
      assert_equal :done, result
      assert_equal [1, RETURNED, "GET", nil, 200], [last.hits, *end_of(last)]
      @span.measure("PUT") { |span| span[:route] = :users }
      assert_equal [2, RETURNED, "PUT", "users", nil], [last.hits, *end_of(last)]
      assert_operator last.value(0, Integer), :>, 0
      assert_equal 5, Tracepoint.span(@name, "GET") { |span| [5, span[:status] = 3].first }
      assert_equal [RETURNED, "GET", nil, 3], end_of(last)
    end
  end

  def test_values_that_do_not_fit_are_converted
    traced do |_, last|
      converted = counting(:converted) { @span.measure("GET") { |span| [span[:status] = "200", span[:route] = "a\0b"] } }
      assert_equal [1, RETURNED, "GET", "a", nil], [converted, *end_of(last)]
    end
  end

  def test_strict
    strictly do
      error = assert_raises(TypeError) { @span.measure("GET") { |span| span[:status] = "200" } }
      assert_equal "#{@span}: status must be Integer, not String", error.message
      assert_raises(TypeError) { @span.start("GET")[:route] = 1 }
      assert_equal 200, @span.measure("GET") { |span| span[:status] = 200 }
    end
  end

  def test_raised_and_thrown
    traced do |_, last|
      assert_raises(RuntimeError) { @span.measure("GET") { |span| [span[:status] = 500, raise("boom")] } }
      assert_equal [RAISED, "GET", nil, 500], end_of(last)
      catch(:out) { @span.measure("GET") { |span| throw :out, span[:status] = 302 } }
      assert_equal [THROWN, "GET", nil, 302], end_of(last)
    end
  end

  def test_nested
    traced do |_, last|
      @span.measure("outer") do |outer|
        @span.measure("inner") { |inner| [outer[:status] = 1, inner[:status] = 2] }
        assert_equal [RETURNED, "inner", nil, 2], end_of(last)
      end
      assert_equal [RETURNED, "outer", nil, 1], end_of(last)
    end
  end

  def test_unknown_result
    message = "#{@span} has no result :statu"
    error = assert_raises(ArgumentError) { @span.measure("GET") { |span| span[:statu] = 200 } }
    assert_equal message, error.message
    assert_raises(ArgumentError) { @span.measure("GET") { |span| span[:method] = "PUT" } }
    assert_raises(ArgumentError) { @span.measure("GET") { |span| span["status"] = 200 } }
    traced { assert_equal message, assert_raises(ArgumentError) { @span.measure("GET") { |span| span[:statu] = 200 } }.message }
  end

  def test_untraced_calls_share_one
    spans = Array.new(2) { @span.measure("GET") { |span| [span[:status] = 200, span].last } }
    assert_same(*spans)
    assert_same spans.first, @span.start("GET")
    assert_predicate spans.first, :frozen?
    assert_nil spans.first.finish
    assert_nil spans.first.finish(:raised)
    assert_raises(TypeError) { spans.first.dup } if Tracepoint.supported?
    assert_raises(NoMethodError) { Tracepoint::Measurement.new }
  end

  def test_strings_are_kept_as_they_were_given
    traced do |_, last|
      given = [+"GET", +"/a"]
      span = @span.start(given[0])
      span[:route] = given[1]
      given.each { |text| text.replace("later") }
      span.finish
      assert_equal [RETURNED, "GET", "/a", nil], end_of(last)
    end
  end

  def test_what_fits_no_type_is_counted_at_both_ends
    traced do |first, last|
      assert_equal(2, counting(:converted) { @span.start([]).finish })
      assert_equal [nil, RETURNED, nil], [first.value(0, String), *end_of(last).first(2)]
      strictly { assert_match(/must be String, not Array/, assert_raises(TypeError) { @span.start([]) }.message) }
    end
  end

  def test_ractors
    needs_native
    skip "no Ractor" unless defined?(Ractor)
    traced do |_, last|
      span = @span.start(Class.new(String).new("GET"))
      assert_predicate span, :frozen?
      assert Ractor.shareable?(span)
      ractor = Ractor.new(span) { |it| [it[:route] = +"/a", it[:status] = 2**70, it.finish(:raised)] }
      ractor.respond_to?(:join) ? ractor.join : ractor.take
      span.finish
      assert_equal [1, RAISED, "GET", "/a", 2**63 - 1], [last.hits, *end_of(last)]
    end
  end

  # The first one ends it, once.
  def test_many_ractors_end_one
    needs_native
    skip "no Ractor" unless defined?(Ractor)
    traced do |_, last|
      spans = Array.new(100) { @span.start("GET") }.freeze
      ractors = Array.new(4) do
        Ractor.new(spans) do |all|
          all.each do |span|
            span[:route] = "x" * 50
            span.finish
          end
        end
      end
      ractors.each { |ractor| ractor.respond_to?(:join) ? ractor.join : ractor.take }
      assert_equal 100, last.hits
    end
  end

  def test_without_results_the_block_gets_nothing
    span = Tracepoint.define_span(unique, { id: Integer })
    assert_equal([], span.measure(1) { |*given| given })
    assert_equal(3, span.measure(1, &-> { 3 }))
    tapping(span) { assert_equal(3, span.measure(1, &-> { 3 })) }
  end

  def test_start_and_finish
    traced do |first, last|
      span = @span.start("GET")
      assert_equal [1, "GET", 0], [first.hits, first.value(0, String), last.hits]
      span[:status] = 200
      sleep 0.002
      assert_nil Thread.new { span.finish }.value
      assert_equal [1, RETURNED, "GET", nil, 200], [last.hits, *end_of(last)]
      assert_operator last.value(0, Integer), :>=, 2_000_000
      span[:status] = 500
      span.finish(:raised)
      assert_equal 1, last.hits
      { raised: RAISED, thrown: THROWN, returned: RETURNED }.each do |outcome, number|
        @span.start("GET").finish(outcome)
        assert_equal [number, "GET", nil, nil], end_of(last)
      end
    end
  end

  def test_finish_within_the_block
    traced do |_, last|
      @span.measure("GET") { |span| [span[:status] = 200, span.finish(:thrown), span[:status] = 500] }
      assert_equal [1, THROWN, "GET", nil, 200], [last.hits, *end_of(last)]
    end
  end

  def test_wrong_start_and_finish
    assert_raises(ArgumentError) { @span.start }
    assert_raises(ArgumentError) { @span.start("GET", 1) }
    assert_raises(ArgumentError) { @span.start("GET").finish(:ok) }
    assert_raises(ArgumentError) { @span.start("GET").finish(:raised, 1) }
    traced { assert_raises(ArgumentError) { @span.start("GET").finish(:ok) } }
    name = unique
    Tracepoint.span(name, 1) { nil }
    undeclared = Tracepoint::Provider[:ruby_app][name]
    assert_raises(ArgumentError) { undeclared.start(1) }
    Tracepoint.define_span(name, [Integer])
    assert_nil undeclared.start(1).finish
  end

  # Nothing kept the arguments, because the span was untraced at its start.
  def test_a_tracer_comes_meanwhile
    needs_taps
    span = @span.start("GET")
    tap = TappedSite.new(registry.sites(@span).last)
    span.finish(:raised)
    assert_equal [1, -1, RAISED, nil, nil, nil], [tap.hits, tap.value(0, Integer), *end_of(tap)]
  ensure
    tap&.close
  end

  def test_a_tracer_comes_while_the_block_runs
    needs_taps
    tap = nil
    @span.measure("GET") { |span| [tap = TappedSite.new(registry.sites(@span).last), span[:status] = 200] }
    assert_equal [1, -1, RETURNED, "GET", nil, nil], [tap.hits, tap.value(0, Integer), *end_of(tap)]
  ensure
    tap&.close
  end

  def test_garbage_collection
    traced do |_, last|
      GC.enable
      GC.stress = true
      @span.measure("GET".dup) { |span| 3.times { |i| span[:route] = "route #{i}" } }
      GC.stress = false
      GC.disable
      span = @span.start("GET")
      100.times { |i| span[:route] = "r#{i}" }
      span.finish
      assert_equal [2, RETURNED, "GET", "r99", nil], [last.hits, *end_of(last)]
    end
  ensure
    GC.stress = false
  end

  private

  def traced(&block)
    tapping(@span, &block)
  end

  # Return everything except the duration.
  def end_of(tap)
    [tap.value(1, Integer), tap.value(2, String), tap.value(3, String), tap.value(4, Integer)]
  end

  def refused(message, &block)
    assert_match message, assert_raises(Tracepoint::DefinitionError, &block).message
  end
end
