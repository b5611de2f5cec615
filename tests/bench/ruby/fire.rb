# frozen_string_literal: true

# The cost of probes in an untraced program, compared with the minimum cost of a
# method. Medians of interleaved rounds, the empty loop subtracted.
#
#   ruby tests/bench/ruby/fire.rb [--json] [--rounds N]

$LOAD_PATH.unshift File.expand_path("../../../ruby/lib", __dir__)
require "tracepoint"
require "tracepoint/benchmark/loops"
require "json"
require "optparse"
require_relative "empty"

abort "no extension for this Ruby: ruby ext/libstapsdt/ruby/build.rb" unless Tracepoint.supported?

class EmptyRuby
  def call(_a, _b)
    false
  end

  def measure
    yield
  end
end

# The same methods under two names: one is called by another, one is traced.
class Calls
  extend Tracepoint::Methods

  def nothing; end

  def empty(_a); end

  def work(a)
    b = a + 1
    [b, b * 2]
  end

  def calls_nothing
    nothing
  end

  def calls_empty(a)
    empty(a)
  end

  def calls_work(a)
    work(a)
  end

  trace def traced_nothing; end

  trace def traced_empty(_a); end

  trace def traced_work(a)
    b = a + 1
    [b, b * 2]
  end
end

PROBE = Tracepoint.define(:bench_fire, { id: Integer, sku: String })
Tracepoint.define(:bench_by_name, { id: Integer, sku: String })
Tracepoint.define(:by_name, { id: Integer, sku: String }, provider: :bench)
SPAN = Tracepoint.define_span(:bench_span)
Tracepoint.define_span(:bench_named_span)
EMPTY = EmptyC.new
RUBY = EmptyRuby.new
CALLS = Calls.new

CASES = {
  "empty C method (1, \"x\")" => 'EMPTY.call(1, "x")',
  "empty C method of 2 (1, \"x\")" => 'EMPTY.call2(1, "x")',
  "empty Ruby method (1, \"x\")" => 'RUBY.call(1, "x")',
  "P.fire(1, \"x\")" => 'PROBE.fire(1, "x")',
  "P.fire(1, \"x\") if P.enabled?" => 'PROBE.fire(1, "x") if PROBE.enabled?',
  "empty C method (:name, 1, \"x\")" => 'EmptyC.call(:bench_by_name, 1, "x")',
  "Tracepoint.fire(:name, 1, \"x\")" => 'Tracepoint.fire(:bench_by_name, 1, "x")',
  "Tracepoint.fire(:\"p:name\", 1, \"x\")" => 'Tracepoint.fire(:"bench:by_name", 1, "x")',
  "Tracepoint.fire(\"name\", 1, \"x\")" => 'Tracepoint.fire("bench_by_name", 1, "x")',
  "Tracepoint.fire(\"p:name\", 1, \"x\")" => 'Tracepoint.fire("bench:by_name", 1, "x")',
  "empty C method { }" => 'EMPTY.call { [1, "x"] }',
  "P.fire { [1, \"x\"] }" => 'PROBE.fire { [1, "x"] }',
  "Ruby method that yields" => "RUBY.measure { }",
  "C method that yields" => "EMPTY.measure { }",
  "C method, yield and ensure" => "EMPTY.ensure { }",
  "S.measure { }" => "SPAN.measure { }",
  "Tracepoint.span(:name) { }" => "Tracepoint.span(:bench_named_span) { }",
  "method that calls an empty one" => "CALLS.calls_nothing",
  "traced empty method" => "CALLS.traced_nothing",
  "method that calls an empty one (1)" => "CALLS.calls_empty(1)",
  "traced empty method (1)" => "CALLS.traced_empty(1)",
  "method that calls a short one (1)" => "CALLS.calls_work(1)",
  "traced short method (1)" => "CALLS.traced_work(1)"
}.freeze

# Variant, baseline, and the goal, if there is one.
RATIOS = [
  ["P.fire(1, \"x\")", "empty C method (1, \"x\")", 1.15],
  ["P.fire(1, \"x\") if P.enabled?", "empty C method (1, \"x\")", nil],
  ["Tracepoint.fire(:name, 1, \"x\")", "empty C method (1, \"x\")", 2.0],
  ["Tracepoint.fire(:name, 1, \"x\")", "empty C method (:name, 1, \"x\")", nil],
  ["Tracepoint.fire(:\"p:name\", 1, \"x\")", "Tracepoint.fire(:name, 1, \"x\")", nil],
  ["Tracepoint.fire(\"name\", 1, \"x\")", "Tracepoint.fire(:name, 1, \"x\")", nil],
  ["Tracepoint.fire(\"p:name\", 1, \"x\")", "Tracepoint.fire(:name, 1, \"x\")", nil],
  ["P.fire { [1, \"x\"] }", "empty C method { }", 1.2],
  ["S.measure { }", "C method that yields", 1.5],
  ["S.measure { }", "Ruby method that yields", 1.5],
  ["S.measure { }", "C method, yield and ensure", nil],
  ["C method, yield and ensure", "Ruby method that yields", nil],
  ["Tracepoint.span(:name) { }", "C method that yields", nil],
  ["traced empty method", "method that calls an empty one", 1.3],
  ["traced empty method (1)", "method that calls an empty one (1)", 1.3],
  ["traced short method (1)", "method that calls a short one (1)", 1.3]
].freeze

options = { rounds: 41 }
OptionParser.new do |o|
  o.on("--json") { options[:json] = true }
  o.on("--rounds N", Integer) { |n| options[:rounds] = n }
end.parse!

# Ratios are taken in each round, of which both halves saw the same machine.
net = Tracepoint::Loops.measure(CASES, rounds: options[:rounds], calls: 200_000)
ratios = RATIOS.map do |what, against, goal|
  all = net[what].zip(net[against]).map { |a, b| a / b }
  { what: what, against: against, goal: goal, ratio: Tracepoint::Loops.median(all).round(3), low: all.min.round(3),
    high: all.max.round(3), best: net[what].min.fdiv(net[against].min).round(3) }
end

if options[:json]
  puts JSON.generate(schema: "rbtrace-py/bench-fire", version: 1, ruby: RUBY_DESCRIPTION, rounds: options[:rounds],
                     ns: net.transform_values { |all| Tracepoint::Loops.median(all).round(2) }, ratios: ratios)
else
  puts RUBY_DESCRIPTION
  net.each { |name, all| puts format("%-40s %8.2f ns", name, Tracepoint::Loops.median(all)) }
  puts
  ratios.each do |r|
    goal = r[:goal] ? format("goal %.2f", r[:goal]) : ""
    puts format("%-33s / %-31s %5.2f  %s", r[:what], r[:against], r[:ratio], goal)
  end
end
