# frozen_string_literal: true

# The program that {Tracepoint.benchmark} runs; do not load it elsewhere. It defines the
# probes, and prints one line per figure.
require "tracepoint"
require_relative "loops"

PROVIDER = :tracepoint_benchmark
NONE = Tracepoint.define(:none, {}, provider: PROVIDER)
INTEGER = Tracepoint.define(:integer, { id: Integer }, provider: PROVIDER)
STRING = Tracepoint.define(:string, { sku: String }, provider: PROVIDER)
SYMBOL = Tracepoint.define(:symbol, { kind: Symbol }, provider: PROVIDER)
FLOAT = Tracepoint.define(:float, { price: Float }, provider: PROVIDER)
BOOL = Tracepoint.define(:bool, { gift: :bool }, provider: PROVIDER)
DISABLED = Tracepoint.define(:disabled, { id: Integer }, provider: "#{PROVIDER}_disabled")
DISABLED.provider.disable
SPAN = Tracepoint.define_span(:span, {}, provider: PROVIDER)
RESULT = Tracepoint.define_span(:result, {}, provider: PROVIDER, result: { status: Integer })

# `calling` calls an empty method; `traced` is an empty method that is traced.
class BenchmarkedMethods
  extend Tracepoint::Methods

  def empty(_number); end

  def calling(number)
    empty(number)
  end

  def traced(_number); end
  trace :traced, as: "#{PROVIDER}:traced"
end

METHODS = BenchmarkedMethods.new
CASES = {
  fire_ns: "NONE.fire",
  fire_integer_ns: "INTEGER.fire(1)",
  fire_string_ns: 'STRING.fire("x")',
  fire_symbol_ns: "SYMBOL.fire(:x)",
  fire_float_ns: "FLOAT.fire(1.5)",
  fire_bool_ns: "BOOL.fire(true)",
  fire_block_ns: "INTEGER.fire { 1 }",
  fire_disabled_ns: "DISABLED.fire(1)",
  fire_by_name_ns: "Tracepoint.fire(:benchmark_positional, 1)",
  fire_keyword_ns: "Tracepoint.fire(:benchmark_keyword, id: 1)",
  measure_ns: "SPAN.measure { }",
  measure_result_ns: "RESULT.measure { |span| span[:status] = 200 }",
  calling_method_ns: "METHODS.calling(1)",
  traced_method_ns: "METHODS.traced(1)"
}.freeze

# The no-op methods in Ruby take a hundred times as long.
figures = Tracepoint::Loops.measure(CASES, rounds: 21, calls: Tracepoint.supported? ? 5_000 : 500)
abort "the benchmark's own probes are traced" if Tracepoint.probes.any?(&:enabled?)

puts RUBY_DESCRIPTION, Tracepoint.supported?
figures.each { |name, all| puts "#{name} #{Tracepoint::Loops.median(all).round(2)}" }
