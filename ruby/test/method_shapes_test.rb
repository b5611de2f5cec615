# frozen_string_literal: true

require "test_helper"

# A traced method behaves and looks like the original, whatever its parameters are.
class MethodShapesTest < Minitest::Test
  class Base
    def m(*arguments, **keywords, &block)
      [:super, arguments, keywords, block && yield(:from_super)]
    end
  end

  # A definition of m, and calls of it.
  SHAPES = {
    nothing: ["def m; :m; end", "m"],
    required: ["def m(a, b); [a, b]; end", "m(1, 2)", "m(*[1, 2])"],
    optional: ["def m(a, b = a + 1, c = b + 1); [a, b, c]; end", "m(1)", "m(1, 5)", "m(1, nil, nil)", "m(1, 4, {k: 1})"],
    optional_then_required: ["def m(a = 1, *r, z); [a, r, z]; end", "m(9)", "m(1, 9)", "m(1, 2, 3, 9)"],
    rest: ["def m(*r); r; end", "m", "m(1, 2)", "m(1, k: 2)", "m({k: 2})"],
    rest_and_block: ["def m(*r, &b); b.call(r); end", "m(1) { |it| [it] }"],
    keywords: ["def m(k:, o: k + 1, p: o + 1); [k, o, p]; end", "m(k: 1)", "m(k: 1, p: 9)", "m(k: 1, o: 5)", "m(p: nil, o: nil, k: 3)"],
    keyword_rest: ["def m(a, o: 1, **r); [a, o, r]; end", "m(1)", "m(1, x: 1)", "m(1, o: 5, x: 1)", "m({x: 1})"],
    all: ["def m(a, b = 2, *r, z, k:, o: 5, **kw, &blk); [a, b, r, z, k, o, kw, blk && blk.call(a)]; end",
          "m(1, 9, k: 0)", "m(1, 2, 3, 9, k: 0, o: nil, q: 1) { |x| x }"],
    reserved: ["def m(if:, class: 3, end: 4); [binding.local_variable_get(:if), binding.local_variable_get(:class)]; end",
               "m(if: 1)", "m(if: 1, class: 2, end: 5)"],
    destructured: ["def m((a, *b), c, (d)); [a, b, c, d]; end", "m([1, 2, 3], 4, [5])", "m(1, 2, nil)", "m([[1, 2]], 3, [[4]])"],
    no_keywords: ["def m(a, **nil); a; end", "m(1)", "m({k: 1})"],
    yields: ["def m(a); block_given? ? [yield(a, 2), yield([3, 4])] : :none; end", "m(1)", "m(1) { |a, b| [a, b] }",
             "m(1, &:inspect)", "m(1, &nil)"],
    block_as_given: ["def m; Helper.identity { |&b| b }; yield; end", "m { next 5 }", "[1].each { |x| m { break 7 } }"],
    breaks: ["def m; yield; :not_reached; end", "m { break :broken }", "m { next 3 }"],
    block: ["def m(&b); b; end", "m.nil?", "m { 5 }.call", "m(&:to_s).call(3)"],
    lambda_block: ["def m; yield 1, 2; end", "m(&->(a, b) { [a, b] })", "m(&method(:Array)) rescue $!.class"],
    returns_from_block: ["def m; [1, 2].each { |x| return x }; end", "m"],
    throws: ["def m; throw :done, 4; end", "catch(:done) { m }"],
    raises: ["def m(a); raise ArgumentError, a; end", "m('x') rescue [$!.class, $!.message]"],
    super_all: ["def m(a, b = 2, k: 3); super; end", "m(1)", "m(1, 5, k: 6) { |x| x }"],
    super_some: ["def m(a, *r); super(a) { |x| [x, r] }; end", "m(1, 2)"],
    super_anonymous: ["def m(*); super; end", "m(1, 2)", "m(1, k: 2) { |x| x }"],
    super_anonymous_keywords: ["def m(a, **); super; end", "m(1)", "m(1, k: 2) { |x| x }"],
    forwarded: ["def m(...); Helper.all(...); end", "m", "m(1, k: 2)", "m(1) { 3 }"],
    own_name: ["def m; [__method__, __callee__.to_s.size > 0]; end", "m"],
    same_names: ["def m(_, a, _); a; end", "m(1, 2, 3)"],
    recursive: ["def m(n); n.zero? ? [] : [n, *m(n - 1)]; end", "m(3)"],
    defined_by_block: ["define_method(:m) { |a, b = 2, *r, k: 3, &blk| [a, b, r, k, blk && blk.call] }",
                       "m(1)", "m(1, 4, 5, k: 6) { 7 }"],
    defined_with_super: ["define_method(:m) { |a| super(a) }", "m(1)"],
    numbered: ["define_method(:m) { [_1, _2] }", "m(1, 2)", "m([1], [2])"],
    block_destructured: ["define_method(:m) { |(a, b), c| [a, b, c] }", "m([1, 2], 3)", "m(1, 2)"],
    reader: ["attr_accessor :m", "m", "self.m = 4", "m"],
    wrong_number: ["def m(a, k:); end", "m rescue $!.class", "m(1) rescue $!.message", "m(1, k: 1, z: 2) rescue $!.message"],
    flagged: ["ruby2_keywords def m(*a); Helper.all(*a); end", "m(1, k: 2)", "m(1, {k: 2})"],
    frozen: ["def m(a); a.frozen?; end", "freeze.m('x')"]
  }
  SHAPES[:forwarded_behind] = ["def m(a, ...); Helper.all(a, ...); end", "m(1)", "m(1, 2, k: 2) { 3 }"] if RUBY_VERSION >= "3.0"
  SHAPES[:it] = ["define_method(:m) { it }", "m(1)", "m([1, 2])"] if RUBY_VERSION >= "3.4"
  if RUBY_VERSION >= "3.2"
    SHAPES[:anonymous] = ["def m(a, *, b, **, &); Helper.all(*, **, &); end", "m(1, 2)", "m(1, 2, 3, k: 2) { 4 }"]
    SHAPES[:all_anonymous] = ["def m(*, **, &); Helper.all(*, **, &); end", "m(1, 2, 3, k: 2) { 4 }"]
  end
  SHAPES[:anonymous_block] = ["def m(a, &); Helper.all(a, &); end", "m(1)", "m(1) { 4 }"] if RUBY_VERSION >= "3.1"
  SHAPES.freeze

  module Helper
    def self.all(*arguments, **keywords, &block)
      [arguments, keywords, block && yield]
    end

    def self.identity(&block)
      block.call(&block)
    end
  end

  # Numbered names are invalid, and a block's parameter without a name may be `it`. Before
  # 3.2, parameters without a name cannot be passed on, so they get one. Two parameters of
  # the same name cannot be distinguished.
  RENAMED = [:same_names, :numbered, :block_destructured, :it,
             *(%i[super_anonymous super_anonymous_keywords] if RUBY_VERSION < "3.2")].freeze

  SHAPES.each do |shape, (body, *calls)|
    define_method(:"test_#{shape}") { check(shape, body, calls) }
  end

  def test_visibility
    VISIBILITIES.each do |visibility|
      kind = define("#{visibility} def m(a); a; end")
      trace(kind)
      assert_equal [:m], kind.__send__(:"#{visibility}_instance_methods", false) - hidden(kind)
      kind.untrace
      assert_equal [:m], kind.__send__(:"#{visibility}_instance_methods", false) - hidden(kind)
    end
  end

  VISIBILITIES = %i[public protected private].freeze

  private

  def check(shape, body, calls)
    kind = define(body)
    before = looks(kind, shape)
    expected = results(kind, calls)
    span = trace(kind)
    assert_equal before, looks(kind, shape), "looks"
    assert_equal expected, results(kind, calls), "untraced"
    # Strict mode behaves as if traced, even if no site can be tapped.
    assert_equal expected, strictly { results(kind, calls) }, "strict"
    check_traced(span, kind, calls, expected) if TappedSite.why_not.nil? && Tracepoint.supported?
    kind.untrace
    assert_equal before, looks(kind, shape), "undone"
    assert_equal expected, results(kind, calls), "undone"
  end

  def check_traced(span, kind, calls, expected)
    tapping(span) do |first, second|
      assert_equal expected, results(kind, calls), "traced"
      assert_operator first.hits, :>=, reaching(calls)
      assert_equal first.hits, second.hits
    end
  end

  # A call with the wrong number of arguments does not reach the body.
  def reaching(calls)
    calls.grep_v(/rescue|self\.m/).size
  end

  def define(body)
    kind = Class.new(Base) { extend Tracepoint::Methods }
    self.class.const_set(unique("Kind"), kind)
    kind.class_eval(body, "shapes.rb", 23)
    kind
  end

  def trace(kind)
    assert_equal :m, kind.trace(:m)
    Tracepoint.probes.last
  end

  def looks(kind, shape)
    method = kind.instance_method(:m)
    parameters = method.parameters unless RENAMED.include?(shape)
    [method.name, method.owner, method.arity, method.source_location, parameters]
  end

  # Each call has a new object.
  def results(kind, calls)
    calls.map { |call| kind.new.instance_eval(call) }
  end

  def hidden(kind)
    kind.private_instance_methods(false).grep(/\A__tracepoint_/)
  end
end
