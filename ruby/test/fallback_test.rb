# frozen_string_literal: true

require "test_helper"

# The same API without the extension.
class FallbackTest < Minitest::Test
  OFF = { "TRACEPOINT_NATIVE" => "0" }.freeze
  # What the extension has to say about these, the fallback says too.
  SHARED = %w[definition conversion fire span provider].freeze

  def test_the_tests_that_need_no_probes_pass_without_the_extension
    skip "this is without it" unless Tracepoint.supported?
    files = SHARED.map { |name| File.join(__dir__, "#{name}_test.rb") }
    output, status = Open3.capture2e(OFF, RbConfig.ruby, "-w", "-I#{LIB}", "-I#{__dir__}", "-e",
                                     files.map { |file| "require #{file.inspect}" }.join(";"))
    assert status.success?, output
    assert_match(/ 0 failures, 0 errors/, output)
    assert_operator output[/(\d+) runs/, 1].to_i - output[/(\d+) skips/, 1].to_i, :>, 30
  end

  def test_no_op
    assert_equal "[false, false, false, 3, 4, 0]\n", ruby(<<~RUBY, env: OFF)
      require "tracepoint-usdt"
      probe = Tracepoint.define(:x, {id: Integer}, provider: :shop)
      span = Tracepoint.define_span(:s)
      p [Tracepoint.supported?, probe.fire(1), Tracepoint.fire("shop:x", 1), span.measure { 3 },
         Tracepoint.span(:t, 1) { 4 }, Tracepoint.stats[:sites]]
    RUBY
  end

  def test_ractors
    skip "no Ractor" unless defined?(Ractor)
    assert_equal "[false, false, 3, 4, false]\n", ruby(<<~RUBY, env: OFF, options: ["-W:no-experimental"])
      require "tracepoint"
      PROBE = Ractor.make_shareable(Tracepoint.define(:x, {id: Integer}, provider: :shop))
      SPAN = Ractor.make_shareable(Tracepoint.define_span(:s))
      ractor = Ractor.new do
        [PROBE.fire(1), Tracepoint.fire("shop:x") { flunk }, SPAN.measure { 3 }, Tracepoint.span(:s) { 4 }, Tracepoint.enabled?(:x)]
      end
      p ractor.respond_to?(:value) ? ractor.value : ractor.take
    RUBY
  end

  # A checkout where nothing was built.
  def test_missing_extension
    Dir.mktmpdir do |dir|
      lib = File.join(dir, "lib")
      FileUtils.cp_r(LIB, lib)
      FileUtils.rm_rf(File.join(lib, "tracepoint/native"))
      script = 'require "tracepoint"; p Tracepoint.supported?, Tracepoint.fire(:x, 1)'
      wanted = { "TRACEPOINT_NATIVE" => nil }
      quiet, = Open3.capture2e(wanted, RbConfig.ruby, "-I#{lib}", "-e", script)
      loud, = Open3.capture2e(wanted, RbConfig.ruby, "-w", "-I#{lib}", "-e", script)
      assert_equal "false\nfalse\n", quiet
      assert_match(/\A.*tracepoint: no extension, so no probes: .+\nfalse\nfalse\n\z/, loud)
    end
  end
end
