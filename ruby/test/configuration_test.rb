# frozen_string_literal: true

require "test_helper"
require "tracepoint/testing"

# Switching all probes off and on. Taps act as tracers and observe the effect.
class ConfigurationTest < Minitest::Test
  def setup
    @probe = Tracepoint.define(unique, { id: Integer })
    @span = Tracepoint.define_span(unique, { id: Integer }, result: { status: Integer })
  end

  def teardown
    Tracepoint.configure { |config| [config.mode = :on, config.signal = nil] }
    Tracepoint.enable
  end

  def test_disabled_probes_read_as_untraced
    tapping(@probe) do |tap|
      Tracepoint.disable
      assert_equal [true, false, false], [Tracepoint.disabled?, @probe.enabled?, Tracepoint.enabled?(@probe.name)]
      refute @probe.fire(1)
      refute(@probe.fire { flunk })
      assert_raises(ArgumentError) { @probe.fire }
      refute Tracepoint.fire(@probe.name, 1)
      assert_equal 0, tap.hits
      Tracepoint.enable
      assert_equal [false, true, true], [Tracepoint.disabled?, @probe.enabled?, @probe.fire(1)]
      assert_equal 1, tap.hits
    end
  end

  def test_disabled_spans_run
    tapping(@span) do |first, last|
      Tracepoint.disable
      assert_equal :value, @span.measure(1) { |span| [span[:status] = 1, :value].last }
      assert_raises(IOError) { @span.measure(1) { raise IOError } }
      open = @span.start(1)
      assert_equal [0, 0], [first.hits, last.hits]
      Tracepoint.enable
      open.finish
      assert_equal [0, 1, -1], [first.hits, last.hits, last.value(0, Integer)]
    end
  end

  def test_probes_defined_while_disabled
    Tracepoint.disable
    probe = Tracepoint.define(unique, {})
    tapping(probe) do
      refute probe.fire
      Tracepoint.enable
      assert probe.fire
    end
  end

  def test_disabled_methods_work_out_no_arguments
    needs_taps
    kind = self.class.const_set(unique("Traced"), Class.new { def pay; 3; end })
    tracer = Class.new(Tracepoint::Tracer) do
      singleton_class.attr_accessor :calls
      def self.arguments(_names)
        { calls: Integer }
      end

      def self.values(*)
        [self.calls += 1]
      end
    end
    tracer.calls = 0
    tracer.register(kind, :pay)
    tapping(Tracepoint::Methods.spans(kind).first) do |first, last|
      Tracepoint.disable
      assert_equal [3, 0, 0, 0], [kind.new.pay, first.hits, last.hits, tracer.calls]
      Tracepoint.enable
      assert_equal [3, 1, 1, 1], [kind.new.pay, first.hits, last.hits, tracer.calls]
    end
  end

  def test_a_capture_sees_what_a_tracer_would
    events = Tracepoint::Testing.capture do
      Tracepoint.disable
      refute @probe.enabled?
      @probe.fire(1)
      @span.measure(2) { nil }
      Tracepoint.toggle
      @probe.fire(3)
    end
    assert_equal [3], events.map { |event| event.arguments[:id] }
  end

  def test_a_disabled_provider_stays_disabled
    probe = Tracepoint.define(unique, {}, provider: unique("off"))
    probe.provider.disable
    tapping(probe) { [Tracepoint.disable, Tracepoint.enable, refute(probe.fire)] }
  end

  def test_modes
    Tracepoint.configure { |config| config.mode = :off }
    assert_predicate Tracepoint, :disabled?
    Tracepoint.configure { |config| config.mode = :on }
    refute_predicate Tracepoint, :disabled?
    ["off", "OFF", :OFF].each do |off|
      Tracepoint.configure { |config| config.mode = off }
      assert_predicate Tracepoint, :disabled?
      Tracepoint.configure { |config| config.mode = "On" }
      refute_predicate Tracepoint, :disabled?
    end
  end

  def test_mistakes_change_nothing
    [:maybe, "maybe", nil, 1].each do |mode|
      assert_raises(ArgumentError) { Tracepoint.configure { |config| config.mode = mode } }
    end
    assert_match(/mode :signal needs a signal/, assert_raises(ArgumentError) { signalled(nil) }.message)
    ["NOSUCH", "SEGV", "KILL", 1000, 1.5, 0, "EXIT", :EXIT].each do |signal|
      assert_match(/\Aconfig.signal cannot be #{signal.inspect}: /, assert_raises(ArgumentError) { signalled(signal) }.message)
    end
    refute_predicate Tracepoint, :disabled?
    Tracepoint.configure { |config| assert_equal [:on, nil], config.to_a }
  end

  def test_a_signal_toggles_and_the_handler_before_is_called
    called = []
    before = trap("USR2") { |number| called << number }
    signalled("USR2")
    assert_predicate Tracepoint, :disabled?
    2.times do |i|
      Process.kill("USR2", $$)
      Thread.pass until called.size > i
      assert_equal i == 1, Tracepoint.disabled?
    end
    assert_equal [Signal.list["USR2"]] * 2, called
    Tracepoint.configure { |config| config.mode = :on }
    Process.kill("USR2", $$)
    Thread.pass until called.size == 3
    refute_predicate Tracepoint, :disabled?
  ensure
    trap("USR2", before || "DEFAULT")
  end

  def test_a_handler_that_came_later_stays
    called = []
    signalled("USR2")
    ours = trap("USR2") { called << :later }
    later = trap("USR2", "DEFAULT").tap { |handler| trap("USR2", handler) }
    Tracepoint.configure { |config| config.mode = :on }
    ours.call(12)
    refute_predicate Tracepoint, :disabled?
    assert_same later, trap("USR2", "DEFAULT")
  end

  def test_threads
    Array.new(8) { Thread.new { 1001.times { Tracepoint.toggle } } }.each(&:join)
    refute_predicate Tracepoint, :disabled?
  end

  def test_forks
    signalled("USR2")
    read, write = IO.pipe
    child = fork do
      Process.kill("USR2", $$)
      Thread.pass while Tracepoint.disabled?
      write.puts [Tracepoint.disabled?, @probe.enabled?].inspect
      exit!
    end
    write.close
    assert_equal "[false, false]\n", read.read
    Process.wait(child)
    assert_predicate Tracepoint, :disabled?
  end

  def test_environment
    { "on" => "", "" => "", "off" => "", "OFF" => "",
      "maybe" => "tracepoint: TRACEPOINT must be on or off, not \"maybe\": it is ignored\n",
      "\xff" => "tracepoint: TRACEPOINT must be on or off, not \"\\xFF\": it is ignored\n" }.each do |value, warning|
      assert_equal "#{warning}#{%w[off OFF].include?(value)}\n", under(value, "p Tracepoint.disabled?")
    end
    assert_equal "false\n", under(nil, "p Tracepoint.disabled?")
  end

  def test_environment_takes_precedence
    script = 'Tracepoint.configure { |it| it.mode = %s }; p Tracepoint.disabled?, trap("PROF", "DEFAULT").inspect[/DEFAULT/]'
    assert_equal "true\n\"DEFAULT\"\n", under("off", format(script, ":on"))
    signalled = "Tracepoint.configure { |it| it.mode = :signal; it.signal = 'PROF' }; Process.kill('PROF', $$); " \
                "p Tracepoint.disabled?"
    assert_equal "false\n", under("on", signalled)
    assert_equal "true\n", under("off", signalled)
    assert_equal "false\n", under("off", "Tracepoint.enable; p Tracepoint.disabled?")
  end

  private

  def signalled(signal)
    Tracepoint.configure do |config|
      config.mode = :signal
      config.signal = signal
    end
  end

  def under(value, script)
    ruby("require 'tracepoint'; #{script}", env: { "TRACEPOINT" => value })
  end
end
