# frozen_string_literal: true

require "test_helper"
require "tracepoint/testing"

# Compares ruby/sig with the code: both must have the same methods.
class SignatureTest < Minitest::Test
  TEXT = File.read(File.expand_path("../sig/tracepoint.rbs", __dir__))

  def test_module
    assert_equal declared(TEXT[/.*?^  module Entry/m], "self."), Tracepoint.singleton_methods(false).map(&:to_s).sort
  end

  def test_classes
    entry = [Tracepoint::Entry]
    { Tracepoint::Probe => entry, Tracepoint::Span => entry, Tracepoint::Provider => [],
      Tracepoint::Measurement => [] }.each do |kind, modules|
      names = [kind, *modules].map { |it| it.name[/\w+\z/] }
      methods = kind.public_instance_methods - Object.public_instance_methods
      methods |= [kind, *modules].flat_map { |it| it.public_instance_methods(false) }
      assert_equal names.flat_map { |name| declared(body(name), "") }.uniq.sort, methods.map(&:to_s).uniq.sort, kind
    end
  end

  def test_methods
    assert_equal declared(body("Methods"), ""), Tracepoint::Methods.public_instance_methods.map(&:to_s).sort
    assert_equal declared(body("Methods"), "self."), Tracepoint::Methods.singleton_methods(false).map(&:to_s).sort
  end

  def test_tracer
    assert_equal declared(body("Tracer"), "self."), Tracepoint::Tracer.singleton_methods(false).map(&:to_s).sort
  end

  def test_testing
    text = File.read(File.expand_path("../sig/testing.rbs", __dir__))
    assert_equal declared(text, "self."), Tracepoint::Testing.singleton_methods(false).map(&:to_s)
    %i[Event Assertions Matchers Fire].each do |name|
      body = text[/^    (?:class|module) #{name}$.*?^    end$/m]
      names = declared(body, "") + body.scan(/attr_reader (\w+)/).flatten
      assert_equal names.sort, Tracepoint::Testing.const_get(name).public_instance_methods(false).map(&:to_s).sort, name
    end
  end

  def test_rbs_accepts_it
    script = 'require "rbs"; require "rbs/cli"; RBS::CLI.new(stdout: $stdout, stderr: $stderr).run(ARGV)'
    _, status = Open3.capture2e(RbConfig.ruby, "-rrbs", "-e", "")
    skip "no rbs" unless status.success?
    output, status = Open3.capture2e(RbConfig.ruby, "-e", script, "--", "-I", File.join(ROOT, "ruby/sig"), "validate", "--silent")
    assert status.success?, output
  end

  private

  def body(name)
    TEXT[/^  (?:class|module) #{name}$.*?^  end$/m]
  end

  def declared(text, prefix)
    text.scan(/^ +def #{Regexp.escape(prefix)}((?!self\.)\S+): /).flatten.uniq.sort
  end
end
