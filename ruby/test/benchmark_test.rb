# frozen_string_literal: true

require "test_helper"

# Checks that there are figures, but not their values: speed must not decide a test.
class BenchmarkTest < Minitest::Test
  OTHERS = %i[ruby supported].freeze

  def test_figures
    probes = Tracepoint.probes
    stats = Tracepoint.stats
    result = Tracepoint.benchmark
    assert_equal [probes, stats], [Tracepoint.probes, Tracepoint.stats], "this process has none of it"
    assert_equal [RUBY_DESCRIPTION, Tracepoint.supported?], [result.ruby, result.supported]
    assert result.frozen?
    figures = result.to_h.reject { |name, _| OTHERS.include?(name) }
    assert_equal([], figures.reject { |name, ns| name.end_with?("_ns") && ns.is_a?(Float) && ns.between?(0, 1_000_000) }.keys)
    assert_equal figures.values.map { |ns| format("%.1f", ns) }, result.to_s.scan(/ +(\d+\.\d)$/).flatten
  end

  def test_what_the_program_loads_is_not_there
    Dir.mktmpdir do |folder|
      File.write(File.join(folder, "application.rb"), 'at_exit { $stderr.puts "at work" }')
      env = { "RUBYOPT" => "-I#{folder} -rapplication", "TRACEPOINT" => "off" }
      said = ruby("puts Tracepoint.benchmark", env: env, options: ["-rtracepoint"])
      assert_equal 1, said.scan("at work").size, said
      assert_includes said.lines(chomp: true), RUBY_DESCRIPTION
      refute_match(/no extension/, said) if Tracepoint.supported?
    end
  end

  def test_without_the_extension
    said = ruby("puts Tracepoint.benchmark", env: { "TRACEPOINT_NATIVE" => "0" }, options: ["-rtracepoint"])
    assert_match(/^no extension: nothing can be traced here$/, said)
    assert_match(/^  probe\.fire\(1\) +\d+\.\d$/, said)
  end

  # As on a machine whose limits do not allow another Ruby process.
  def test_a_ruby_that_fails
    said = ruby(<<~RUBY, options: ["-rtracepoint"])
      Process.setrlimit(:AS, 1 << 20)
      begin
        Tracepoint.benchmark
      rescue RuntimeError, SystemCallError => e
        puts e.class, e.message
      end
    RUBY
    assert_match(/\A(RuntimeError\nthe benchmark's Ruby failed: |Errno::)/, said)
  end
end
