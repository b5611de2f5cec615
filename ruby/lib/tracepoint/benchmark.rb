# frozen_string_literal: true

require "rbconfig"

module Tracepoint
  class << self
    # Measure the cost of untraced calls of this gem, in a separate Ruby process. It runs
    # the same Ruby with the same extension, without the application. This process defines
    # and fires nothing. Takes about a second.
    #
    #   $ ruby -rtracepoint -e 'puts Tracepoint.benchmark'
    #
    # @return [Benchmark]
    # @raise [RuntimeError] the other Ruby failed; the message contains its output
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

  # The cost of untraced calls of this gem. Each figure is in nanoseconds per call: the
  # median of 21 interleaved rounds, minus the empty loop. Frozen.
  #
  # Without the extension, the figures measure the no-op methods that replace it, and
  # {#supported} is false.
  #
  # @!attribute ruby
  #   @return [String] RUBY_DESCRIPTION of the measured Ruby
  # @!attribute supported
  #   @return [Boolean] value of {Tracepoint.supported?} there
  # @!attribute fire_ns
  #   @return [Float] a probe without arguments; `fire_integer_ns` and others: with one
  # @!attribute fire_block_ns
  #   @return [Float] a block instead of arguments, which does not run
  # @!attribute fire_by_name_ns
  #   @return [Float] an undefined probe; `fire_keyword_ns`: with its argument by name
  # @!attribute fire_disabled_ns
  #   @return [Float] a probe of a disabled provider
  # @!attribute measure_ns
  #   @return [Float] a span around an empty block; `measure_result_ns`: that sets a result
  # @!attribute traced_method_ns
  #   @return [Float] an empty method that {Methods} traces; `calling_method_ns`: a method
  #     that only calls an empty method
  Benchmark = Struct.new(:ruby, :supported, *LABELS.keys, keyword_init: true) do
    class << self
      # @api private
      # @return [Benchmark]
      def run
        output = IO.popen([environment, *command, { err: %i[child out] }], &:read)
        raise "the benchmark's Ruby failed: #{output.strip}" unless $?.success?

        # Messages of the dynamic loader may precede the figures.
        ruby, supported, *figures = output.lines(chomp: true).last(LABELS.size + 2)
        new(ruby: ruby.freeze, supported: supported == "true", **figures.to_h { |line| figure(*line.split) }).freeze
      end

      private

      # Keep out whatever the application's environment loads or disables.
      def environment
        { "RUBYOPT" => nil, "RUBYLIB" => nil, "TRACEPOINT" => nil }
      end

      def command
        jit = defined?(RubyVM::YJIT) && RubyVM::YJIT.enabled?
        [RbConfig.ruby, "-W0", *("--yjit" if jit), *paths.map { |path| "-I#{path}" }, File.join(__dir__, "benchmark/child.rb")]
      end

      # An installed gem has its extension in a separate folder.
      def paths
        extension = $LOADED_FEATURES.grep(%r{/tracepoint/native\.#{RbConfig::CONFIG["DLEXT"]}\z})
        [File.expand_path("..", __dir__), *extension.map { |path| File.expand_path("../..", path) }]
      end

      def figure(name, ns)
        [name.to_sym, Float(ns)]
      end
    end

    # @return [String] a table of all figures
    def to_s
      rows = LABELS.map { |name, label| format("  %-45s %8.1f", label, self[name]) }
      [ruby, *("no extension: nothing can be traced here" unless supported), "ns per untraced call:", *rows].join("\n")
    end
  end
end
