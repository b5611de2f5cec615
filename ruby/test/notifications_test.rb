# frozen_string_literal: true

require "test_helper"
begin
  require "tracepoint/notifications"
rescue LoadError
  nil # these tests are skipped without ActiveSupport
end

class NotificationsTest < Minitest::Test
  RETURNED = 0
  RAISED = 1

  def setup
    skip "no ActiveSupport" unless Tracepoint.const_defined?(:Notifications, false)
  end

  def test_names
    { "sql.active_record" => %w[active_record sql], "cache_exist?.active_support" => %w[active_support cache_exist_p],
      "a.b-c.d" => %w[d a_b_c], "save!.x" => %w[x save_bang] }.each do |event, names|
      assert_equal names, notifications.names(event)
    end
  end

  def test_events_of_rails_have_spans
    spans = notifications::EVENTS.keys.map { |event| notifications.names(event).join(":") }
    assert_empty spans - Tracepoint.probes.map { |probe| "#{probe.provider}:#{probe.name}" }
    assert_equal "active_record:sql(statement: String, name: String, cached: bool)", span_of("active_record:sql").to_s
  end

  def test_sql
    tapping(span_of("active_record:sql")) do |first, last|
      sql = "SELECT * FROM items WHERE id = 7"
      instrument("sql.active_record", sql: sql, name: "Item Load") { assert_equal [1, 0], [first.hits, last.hits] }
      assert_equal [1, RETURNED, "SELECT * FROM items WHERE id = ?", "Item Load", false], [last.hits, *end_of(last, String, String, :bool)]
      assert_operator last.value(0, Integer), :>, 0
      instrument("sql.active_record", sql: "SELECT 1", name: nil, cached: true) { nil }
      assert_equal [RETURNED, "SELECT ?", nil, true], end_of(last, String, String, :bool)
    end
  end

  def test_nothing_is_read_while_nobody_traces
    called = 0
    span = notifications.subscribe("read.#{unique}", { id: Integer }) { [called += 1] }
    event = "read.#{span.provider}"
    instrument(event) { nil }
    assert_equal 0, called
    tapping(span) { |_, last| [instrument(event) { nil }, assert_equal([RETURNED, 1], end_of(last, Integer))] }
  end

  def test_own_events
    library = unique("shop")
    2.times { notifications.subscribe("buy.#{library}", { id: Integer }, result: { cents: Integer }) }
    tapping(span_of("#{library}:buy")) do |first, last|
      instrument("buy.#{library}", id: 7) { |payload| payload[:cents] = 250 }
      assert_equal [1, 1, RETURNED, 7, 250], [first.hits, last.hits, *end_of(last, Integer, Integer)]
      assert_raises(RuntimeError) { instrument("buy.#{library}", id: 8) { raise "boom" } }
      assert_equal [2, RAISED, 8, nil], [last.hits, *end_of(last, Integer, Integer)]
    end
    assert_raises(Tracepoint::DefinitionError) { notifications.subscribe("buy.#{library}", { id: String }) }
  end

  def test_events_nest_in_their_own
    library = unique("shop")
    span = notifications.subscribe("buy.#{library}", { id: Integer })
    tapping(span) do |first, last|
      fiber = Fiber.new { instrument("buy.#{library}", id: 3) { Fiber.yield } }
      instrument("buy.#{library}", id: 1) do
        fiber.resume
        instrument("buy.#{library}", id: 2) { nil }
        assert_equal [3, 1, RETURNED, 2], [first.hits, last.hits, *end_of(last, Integer)]
      end
      assert_equal [RETURNED, 1], end_of(last, Integer)
      fiber.resume
      assert_equal [3, RETURNED, 3], [last.hits, *end_of(last, Integer)]
    end
  end

  def test_an_error_of_ours_is_not_the_programs
    library = unique("shop")
    span = notifications.subscribe("buy.#{library}", { id: Integer }) { raise "ours" }
    tapping(span) do |_, last|
      assert_equal 5, instrument("buy.#{library}", id: 1) { 5 }
      assert_equal [1, RETURNED, nil], [last.hits, *end_of(last, Integer)]
    end
    tapping(span_of("active_record:sql")) { assert_equal 5, instrument("sql.active_record", sql: nil) { 5 } }
    span = notifications.subscribe("sell.#{library}", { id: Integer, sku: String }) { [1] }
    tapping(span) { |_, last| assert_equal [5, nil], [instrument("sell.#{library}") { 5 }, *end_of(last, Integer).last(1)] }
  end

  def test_a_payload_that_is_no_hash
    library = unique("shop")
    span = notifications.subscribe("odd.#{library}", { id: Integer }, result: { cents: Integer })
    [nil, "text", Object.new].each do |payload|
      assert_equal 5, ActiveSupport::Notifications.instrument("odd.#{library}", payload) { 5 }
      tapping(span) do |_, last|
        assert_equal 5, ActiveSupport::Notifications.instrument("odd.#{library}", payload) { 5 }
        assert_equal [1, RETURNED, nil, nil], [last.hits, *end_of(last, Integer, Integer)]
      end
    end
  end

  def test_other_events_are_not_built
    refute ActiveSupport::Notifications.notifier.listening?("nobody.#{unique}")
  end

  private

  def notifications
    Tracepoint::Notifications
  end

  def span_of(name)
    provider, name = name.split(":")
    Tracepoint::Provider[provider][name]
  end

  def instrument(event, payload = {}, &block)
    ActiveSupport::Notifications.instrument(event, payload, &block)
  end

  # Return the outcome, followed by values of these types.
  def end_of(tap, *types)
    [tap.value(1, Integer), *types.each_with_index.map { |type, i| tap.value(i + 2, type) }]
  end
end
