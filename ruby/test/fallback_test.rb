# frozen_string_literal: true

require "test_helper"

# The same API without the extension.
class FallbackTest < Minitest::Test
  OFF = { "TRACEPOINT_NATIVE" => "0" }.freeze
  # The fallback gives the same messages as the extension about these.
  SHARED = %w[definition conversion fire span result undeclared provider rack notifications sidekiq net_http redis].freeze

  def test_the_tests_that_need_no_probes_pass_without_the_extension
    skip "this is without it" unless Tracepoint.supported?
    assert_operator passed(SHARED), :>, 30
  end

  # Run separately: it replaces methods of the fallback.
  def test_the_testing_helper_and_the_switches_work_without_the_extension
    skip "this is without it" unless Tracepoint.supported?
    assert_operator passed(%w[testing configuration method_shapes methods]), :>, 60
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

  # A checkout without a built extension warns once, with instructions to build it.
  def test_missing_extension
    without_extension do |dir, lib|
      script = File.join(dir, "ext/libstapsdt/ruby/build.rb")
      FileUtils.mkdir_p(File.dirname(script))
      FileUtils.touch(script)
      remedy = "`#{RbConfig.ruby} #{script}` builds it"
      [[], ["-w"]].each { |options| assert_warns(/cannot load such file -- .+; #{Regexp.escape(remedy)}/, lib, *options) }
      assert_equal ABSENT, load_from(lib, "-W0")
      assert_equal ABSENT, load_from(lib, "-w", env: OFF)
    end
  end

  def test_missing_extension_of_an_installed_gem
    without_extension { |_, lib| assert_warns(/cannot load such file -- .+; `gem pristine tracepoint-usdt` builds it, given .+/, lib) }
  end

  def test_an_extension_that_does_not_load
    with_damaged_extension { |lib, native| assert_warns(/.*#{Regexp.escape(native)}.*; .+/, lib) }
  end

  # A shared Ruby's extension loads libruby, which a static Ruby of the same version lacks.
  def test_another_kind_of_build_has_an_extension_of_its_own
    other = RbConfig::CONFIG["ENABLE_SHARED"] == "no" ? "yes" : "no"
    with_damaged_extension do |lib, _|
      kind = ["--disable-gems", "-rrbconfig", "-e", "RbConfig::CONFIG['ENABLE_SHARED'] = '#{other}'"]
      assert_warns(/cannot load such file -- [^;]+; .+/, lib, *kind)
    end
  end

  # No warning is printed where the extension cannot be built.
  def test_no_warning_where_it_cannot_be_built
    without_extension do |_, lib|
      elsewhere = ["-rrbconfig", "-e", 'RbConfig::CONFIG["host_os"] = "darwin22"']
      assert_equal ABSENT, load_from(lib, *elsewhere)
      assert_warns(/cannot load such file -- [^;]+/, lib, "-w", *elsewhere)
    end
  end

  private

  # Return the number of tests that pass in these files. None may fail.
  def passed(names)
    files = names.map { |name| File.join(__dir__, "#{name}_test.rb") }
    output, status = Open3.capture2e(OFF, RbConfig.ruby, "-w", "-I#{LIB}", "-I#{__dir__}", "-e",
                                     files.map { |file| "require #{file.inspect}" }.join(";"))
    assert status.success?, output
    assert_match(/ 0 failures, 0 errors/, output)
    output[/^(\d+) runs,/, 1].to_i - output[/(\d+) skips/, 1].to_i
  end

  ABSENT = "false\nfalse\n"
  private_constant :ABSENT

  def without_extension
    Dir.mktmpdir do |dir|
      dir = File.realpath(dir)
      lib = File.join(dir, "ruby/lib")
      FileUtils.mkdir_p(File.dirname(lib))
      FileUtils.cp_r(LIB, lib)
      FileUtils.rm_rf(File.join(lib, "tracepoint/native"))
      yield dir, lib
    end
  end

  def with_damaged_extension
    without_extension do |_, lib|
      abi = Tracepoint.const_get(:Implementation).abi
      native = File.join(lib, "tracepoint/native", abi, "native.#{RbConfig::CONFIG["DLEXT"]}")
      FileUtils.mkdir_p(File.dirname(native))
      File.write(native, "no library")
      yield lib, native
    end
  end

  def load_from(lib, *options, env: {})
    script = 'require "tracepoint"; p Tracepoint.supported?, Tracepoint.fire(:x, 1)'
    output, = Open3.capture2e({ "TRACEPOINT_NATIVE" => nil, "RUBYOPT" => nil }.merge(env), RbConfig.ruby,
                              "-I#{lib}", *options, "-e", script)
    output
  end

  def assert_warns(reason, lib, *options)
    assert_match(/\Atracepoint: no extension, so no probes: #{reason}\n#{ABSENT}\z/, load_from(lib, *options))
  end
end
