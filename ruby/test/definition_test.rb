# frozen_string_literal: true

require "test_helper"

class DefinitionTest < Minitest::Test
  def test_what_a_probe_says_of_itself
    name = unique
    probe = Tracepoint.define(name.to_sym, { id: Integer, sku: String, ratio: Float, kind: Symbol, paid: :bool }, provider: :shop)

    assert_equal name.to_sym, probe.name
    assert_equal :shop, probe.provider.name
    assert_equal({ id: Integer, sku: String, ratio: Float, kind: Symbol, paid: :bool }, probe.operands)
    assert_equal "shop:#{name}(id: Integer, sku: String, ratio: Float, kind: Symbol, paid: bool)", probe.to_s
    assert_equal "#<Tracepoint::Probe #{probe}>", probe.inspect
    assert_predicate probe, :frozen?
    assert_predicate probe.operands, :frozen?
    refute_predicate probe, :enabled?
  end

  def test_default_provider
    assert_equal :ruby_app, Tracepoint.define(unique).provider.name
    assert_equal "ruby_app", Tracepoint::DEFAULT_PROVIDER
  end

  def test_provider_in_the_name
    name = unique
    probe = Tracepoint.define("shop:#{name}", { id: Integer })

    assert_same probe, Tracepoint.define(name, { id: Integer }, provider: "shop")
    assert_same probe, Tracepoint.define(name.to_sym, { id: Integer }, provider: :shop)
  end

  def test_operands_without_names
    probe = Tracepoint.define(unique, [Integer, :bool])

    assert_equal({ arg0: Integer, arg1: :bool }, probe.operands)
  end

  def test_same_types_again_is_the_same_probe
    name = unique
    first = Tracepoint.define(name, { id: Integer })

    assert_same first, Tracepoint.define(name, { id: Integer })
    assert_same first, Tracepoint.define(name, { other: Integer })
    assert_same first, Tracepoint.define(name, [Integer])
  end

  def test_other_types_are_refused
    name = unique
    Tracepoint.define(name, { id: Integer })
    [{ id: String }, {}, { id: Integer, sku: String }].each do |operands|
      error = assert_raises(Tracepoint::DefinitionError) { Tracepoint.define(name, operands) }
      assert_includes error.message, "there is a probe ruby_app:#{name}(id: Integer), " \
                                      "which stays as it is: restart the program, or choose another name"
    end
  end

  def test_same_name_of_two_providers
    name = unique

    refute_same Tracepoint.define(name, {}, provider: :a), Tracepoint.define(name, {}, provider: :b)
  end

  def test_bad_names
    ["", "a b", "a-b", "é", "a" * 64, "a\n", "a\0", ":a", "a:", "a:b:c", :"a?", "x".encode("UTF-16LE")].each do |name|
      error = assert_raises(Tracepoint::DefinitionError, name.inspect) { Tracepoint.define(name) }
      assert_includes error.message, "1 to 63 of A-Z a-z 0-9 _"
      refute Tracepoint.enabled?(name)
    end
    assert_raises(Tracepoint::DefinitionError) { Tracepoint.define(unique, {}, provider: "a b") }
    assert_raises(Tracepoint::DefinitionError) { Tracepoint.define("a:b", {}, provider: :a) }
  end

  def test_what_is_no_name
    [nil, 1, Object.new, false, true, []].each do |name|
      assert_raises(TypeError) { Tracepoint.define(name) }
      assert_raises(TypeError) { Tracepoint.enabled?(name) }
    end
  end

  def test_longest_names
    a = "a" * (63 - 12) + unique("x").rjust(12, "0")

    assert_equal 63, a.length
    probe = Tracepoint.define(a, {}, provider: "p" * 63)
    assert_equal false, Tracepoint.fire("#{"p" * 63}:#{a}")
    assert_same probe, Tracepoint::Provider["p" * 63][a]
  end

  def test_unknown_types
    [nil, 3, Object, TrueClass, :int, "Integer", Array].each do |type|
      error = assert_raises(Tracepoint::DefinitionError) { Tracepoint.define(unique, { id: type }) }
      assert_includes error.message, "Integer, String, Symbol, Float or :bool, not #{type.inspect}"
    end
  end

  def test_bad_operands
    assert_raises(Tracepoint::DefinitionError) { Tracepoint.define(unique, { "a b": Integer }) }
    assert_raises(Tracepoint::DefinitionError) { Tracepoint.define(unique, { "id" => Integer, id: Integer }) }
    assert_raises(TypeError) { Tracepoint.define(unique, { 1 => Integer }) }
    assert_raises(TypeError) { Tracepoint.define(unique, Integer) }
    assert_raises(ArgumentError) { Tracepoint.define(unique, {}, {}) }
    assert_raises(ArgumentError) { Tracepoint.define(unique, {}, prov: :a) }
  end

  # Ruby treats operands without braces as keywords.
  def test_operands_without_their_braces
    name = unique.to_sym
    {
      -> { Tracepoint.define(name, count: Integer) } => "define(:#{name}, {count: Integer})",
      -> { Tracepoint.define(name, "a" => String, ok: :bool, provider: :shop) } =>
        "define(:#{name}, {a: String, ok: :bool}, provider: :shop)",
      -> { Tracepoint.define_span(name, id: Float) } => "define_span(:#{name}, {id: Float})"
    }.each do |call, right|
      error = assert_raises(ArgumentError, &call)
      assert_match(/\Aunknown keyword: \S+; put the arguments in braces: Tracepoint\.#{Regexp.escape(right)}\z/, error.message)
    end
    [-> { Tracepoint.define(name, prov: :a) }, -> { Tracepoint.define(name, {}, count: Integer) }].each do |call|
      assert_match(/\Aunknown keyword: :\w+\z/, assert_raises(ArgumentError, &call).message)
    end
    assert_empty Tracepoint.probes.select { |probe| probe.name == name }
  end

  def test_most_operands
    assert_equal 12, Tracepoint.define(unique, [Integer] * 12).operands.size
    error = assert_raises(Tracepoint::DefinitionError) { Tracepoint.define(unique, [Integer] * 13) }
    assert_includes error.message, "at most 12 arguments, not 13"
  end

  def test_span
    name = unique("span")
    span = Tracepoint.define_span(name, { id: Integer }, provider: :shop)

    assert_equal "shop:#{name}(id: Integer)", span.to_s
    assert_equal "#<Tracepoint::Span #{span}>", span.inspect
    assert_same span, Tracepoint.define_span(name, { id: Integer }, provider: :shop)
    assert_same span, Tracepoint::Provider[:shop][name]
  end

  def test_limits_of_a_span
    assert_equal 10, Tracepoint.define_span(unique, [Integer] * 10).operands.size
    assert_raises(Tracepoint::DefinitionError) { Tracepoint.define_span(unique, [Integer] * 11) }
    assert_raises(Tracepoint::DefinitionError) { Tracepoint.define_span("s" * 57) }
    assert_raises(Tracepoint::DefinitionError) { Tracepoint.define_span(unique, { outcome: Integer }) }
    assert_raises(Tracepoint::DefinitionError) { Tracepoint.define_span(unique, { duration_ns: Integer }) }
  end

  def test_a_name_is_a_probe_or_a_span
    span = unique("span")
    Tracepoint.define_span(span)
    [span, "#{span}__begin", "#{span}__end"].each do |name|
      assert_raises(Tracepoint::DefinitionError) { Tracepoint.define(name) }
    end
    probe = unique
    Tracepoint.define("#{probe}__end")
    assert_raises(Tracepoint::DefinitionError) { Tracepoint.define_span(probe) }
    assert_raises(ArgumentError) { Tracepoint.fire(span) }
    assert_raises(ArgumentError) { Tracepoint.span("#{probe}__end") { nil } }
  end

  def test_listing
    event = Tracepoint.define(unique)
    span = Tracepoint.define_span(unique)

    assert_equal [event, span], Tracepoint.probes.last(2)
  end

  def test_no_other_way_to_make_one
    probe = Tracepoint.define(unique)
    [Tracepoint::Probe, Tracepoint::Span, Tracepoint::Provider].each do |kind|
      assert_raises(NoMethodError) { kind.new }
      assert_raises(TypeError) { kind.allocate } if Tracepoint.supported?
      assert_raises(TypeError) { Class.new(kind).allocate } if Tracepoint.supported?
    end
    assert_same probe, probe.dup
    assert_same probe, probe.clone
    assert_raises(TypeError) { Marshal.dump(probe) } if Tracepoint.supported?
    assert_raises(TypeError) { Tracepoint::Probe.instance_method(:fire).bind(Object.new) }
    assert_raises(FrozenError) { probe.instance_variable_set(:@a, 1) }
  end

  def test_many
    before = Tracepoint.probes.size
    names = Array.new(3_000) { unique("many") }
    probes = names.map { |name| Tracepoint.define(name, { id: Integer }) }

    assert_equal before + 3_000, Tracepoint.probes.size
    names.zip(probes) do |name, probe|
      assert_same probe, Tracepoint.define(name, { id: Integer })
      assert_raises(ArgumentError) { Tracepoint.fire(name.to_sym) }
    end
  end

  def test_stats
    stats = Tracepoint.stats

    assert_equal %i[bytes converted dropped failed images over_limit sites], stats.keys.sort
    return unless Tracepoint.supported?

    Tracepoint.define_span(unique)
    assert_equal stats[:sites] + 2, Tracepoint.stats[:sites]
    assert_operator Tracepoint.stats[:images], :>=, 1
  end
end
