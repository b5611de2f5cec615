# frozen_string_literal: true

require "rbconfig"

module Tracepoint
  class << self
    # Measure what calls of this gem cost while nobody traces, in a Ruby of its own: the
    # same one, with the same extension, without the application. Nothing is defined or
    # fired in this process. Takes about a second.
    #
    #   $ ruby -rtracepoint -e 'puts Tracepoint.benchmark'
    #
    # @return [Benchmark]
    # @raise [RuntimeError] that Ruby failed; with what it said
    def benchmark
      Benchmark.run
    end
  end

  LABELS = {
    fire_ns: "probe.fire",
    fire_integer_ns: "probe.fire(1)",
    fire_string_ns: 'probe.fire("x")',
    fire_symbol_ns: "probe.fire(:x)",
    fire_float_ns: "probe.fire(1.5)",
    fire_bool_ns: "probe.fire(true)",
    fire_block_ns: "probe.fire { 1 }",
    fire_disabled_ns: "probe.fire(1), provider disabled",
    fire_by_name_ns: "Tracepoint.fire(:name, 1)",
    fire_keyword_ns: "Tracepoint.fire(:name, id: 1)",
    measure_ns: "span.measure { }",
    measure_result_ns: "span.measure { |span| span[:status] = 200 }",
    calling_method_ns: "method(1) that calls an empty one",
    traced_method_ns: "traced empty method(1)"
  }.freeze
  private_constant :LABELS

  # What calls of this gem cost while nobody traces: a figure each, in nanoseconds a call,
  # the median of 21 interleaved rounds, each less its empty loop. Frozen.
  #
  # Where there is no extension they are the figures of the methods that do nothing in its
  # place, and {#supported} is false.
  #
  # @!attribute ruby
  #   @return [String] RUBY_DESCRIPTION of the Ruby that was measured
  # @!attribute supported
  #   @return [Boolean] {Tracepoint.supported?} there
  # @!attribute fire_ns
  #   @return [Float] a probe without arguments; `fire_integer_ns` and so on: with one
  # @!attribute fire_block_ns
  #   @return [Float] a block instead of the arguments, which does not run
  # @!attribute fire_by_name_ns
  #   @return [Float] a probe without a definition; `fire_keyword_ns`: its argument by name
  # @!attribute fire_disabled_ns
  #   @return [Float] one of a provider that is disabled
  # @!attribute measure_ns
  #   @return [Float] a span around an empty block; `measure_result_ns`: which sets a result
  # @!attribute traced_method_ns
  #   @return [Float] an empty method that {Methods} traces; `calling_method_ns`: one that
  #     calls an empty method, and nothing else
  Benchmark = Struct.new(:ruby, :supported, *LABELS.keys, keyword_init: true) do
    class << self
      # @api private
      # @return [Benchmark]
      def run
        output = IO.popen([environment, *command, { err: %i[child out] }], &:read)
        raise "the benchmark's Ruby failed: #{output.strip}" unless $?.success?

        ruby, supported, *figures = output.lines(chomp: true)
        new(ruby: ruby.freeze, supported: supported == "true", **figures.to_h { |line| figure(*line.split) }).freeze
      end

      private

      # Nothing that the application's own environment loads or switches off.
      def environment
        { "RUBYOPT" => nil, "RUBYLIB" => nil, "TRACEPOINT" => nil }
      end

      def command
        jit = defined?(RubyVM::YJIT) && RubyVM::YJIT.enabled?
        [RbConfig.ruby, "-W0", *("--yjit" if jit), *paths.map { |path| "-I#{path}" }, File.join(__dir__, "benchmark/child.rb")]
      end

      # An installed gem has its extension in another folder.
      def paths
        extension = $LOADED_FEATURES.grep(%r{/tracepoint/native\.#{RbConfig::CONFIG["DLEXT"]}\z})
        [File.expand_path("..", __dir__), *extension.map { |path| File.expand_path("../..", path) }]
      end

      def figure(name, ns)
        [name.to_sym, Float(ns)]
      end
    end

    # @return [String] a table
    def to_s
      rows = LABELS.map { |name, label| format("  %-45s %8.1f", label, self[name]) }
      [ruby, *("no extension: nothing can be traced here" unless supported), "ns a call while nobody traces:", *rows].join("\n")
    end
  end
end
