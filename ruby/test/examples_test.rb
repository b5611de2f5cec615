# frozen_string_literal: true

require "test_helper"

# Checks that the examples run. Tests with a tracer check what it sees of them.
class ExamplesTest < Minitest::Test
  PLAIN = /\Apid \d+\nready\ndone\n\z/.freeze

  def test_hello
    assert_match PLAIN, example("hello.rb", "--count", "3")
  end

  def test_latency
    assert_match PLAIN, example("latency.rb", "--count", "1")
  end

  def test_nested_spans
    assert_match PLAIN, example("nested_spans.rb", "--count", "20")
  end

  def test_preforking
    assert_match(/\Achildren \d+ \d+ \d+\npid \d+\nready\ndone\n\z/, example("preforking.rb", "--count", "5"))
  end

  def test_shop
    assert_match(/\Apid \d+\nready\n40 orders, 38 paid, 2 declined\ndone\n\z/, example("shop/shop.rb", "--orders", "40"))
    assert_match(/ready\n\d+ orders, /, example("shop/shop.rb", "--seconds", "0.1"))
  end

  def test_they_wait
    input, output, process = Open3.popen2(*command("hello.rb", "--count", "1", "--wait"))
    assert_equal "pid #{process.pid}\nready\n", output.gets + output.gets
    refute output.wait_readable(0.2)
    input.puts
    assert_equal "done\n", output.gets
    input.puts
    assert_predicate process.value, :success?
  ensure
    [input, output].compact.each(&:close)
  end

  def test_they_end_when_told_to
    %w[hello.rb preforking.rb shop/shop.rb].each do |name|
      _, output, process = Open3.popen2(*command(name))
      nil until output.gets == "ready\n"
      Process.kill(:TERM, process.pid)
      assert_equal "", output.read, name # its children have closed it as well
      assert_predicate process.value, :success?, name
    end
  end

  private

  def command(name, *options)
    [RbConfig.ruby, "-w", "-I#{LIB}", File.join(ROOT, "examples", name), *options]
  end

  def example(name, *options)
    output, status = Open3.capture2e(*command(name, *options))
    assert status.success?, output
    output
  end
end
