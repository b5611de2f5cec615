# frozen_string_literal: true

require "test_helper"
require "socket"
begin
  require "tracepoint/puma"
rescue LoadError
  nil # these tests are skipped without Puma
end

class PumaTest < Minitest::Test
  THREADS = 2

  def setup
    @server = nil
    skip "no Puma" unless Tracepoint.const_defined?(:Puma, false)
    needs_native
    @entered = Queue.new
    @gate = Queue.new
  end

  def teardown
    @server&.stop(true)
  end

  def test_busy_threads_and_backlog
    serve
    traced do |tap|
      assert_equal [0, 0, THREADS, THREADS], next_values(tap)
      waiting = Array.new(3) { connect("GET / HTTP/1.0\r\n") }
      clients = Array.new(THREADS) { connect("GET / HTTP/1.0\r\n\r\n") } + waiting
      THREADS.times { @entered.pop }
      # Puma accepts no more connections, but it may now read the accepted ones to their end.
      waiting.each { |client| client.write("\r\n") }
      assert_equal [3, THREADS, THREADS, THREADS], until_values(tap) { |backlog,| backlog == 3 }
      clients.size.times { @gate << true }
      clients.each { |client| assert_equal "hello", client.read.lines.last }
      assert_equal [0, 0, THREADS, THREADS], until_values(tap) { |_, busy,| busy.zero? }
    end
  end

  def test_it_ends_with_its_server
    serve
    sampler = @server.instance_variable_get(:@tracepoint_sampler)
    assert_equal ["tracepoint puma", true], [sampler.name, sampler.alive?]
    @server.begin_restart(true)
    assert_equal sampler, sampler.join(60)
    @server.run
    refute_equal sampler, @server.instance_variable_get(:@tracepoint_sampler)
  end

  def test_pumas_control_server_is_left_out
    require "puma/app/status"
    serve(Puma::App::Status.new(nil, nil))
    assert_nil @server.instance_variable_get(:@tracepoint_sampler)
  end

  def test_a_server_whose_figures_fail
    serve
    @server.define_singleton_method(:backlog) { stop || raise("on purpose") }
    sampler = @server.instance_variable_get(:@tracepoint_sampler)
    traced { |tap| assert_equal [sampler, 0], [sampler.join(60), tap.hits] }
  end

  def test_plugin
    script = 'require "puma"; require "puma/plugin"; p Puma::Plugins.find(:tracepoint).superclass; p Tracepoint::Puma::STATS'
    assert_equal "Puma::Plugin\n#<Tracepoint::Probe puma:stats(backlog: Integer, busy: Integer, threads: Integer, max: Integer)>\n",
                 ruby(script, verbose: false)
  end

  private

  def serve(app = ->(_) { [200, {}, [hold]] })
    options = { min_threads: THREADS, max_threads: THREADS }
    # Puma 6 logs to a log writer, older versions to their events.
    options[:log_writer] = Puma::LogWriter.strings if defined?(Puma::LogWriter)
    @server = Puma::Server.new(app, (Puma::Events.strings unless options[:log_writer]), options)
    @port = @server.add_tcp_listener("127.0.0.1", 0).addr[1]
    @server.run
  end

  def hold
    @entered << true
    @gate.pop
    "hello"
  end

  def connect(text)
    TCPSocket.new("127.0.0.1", @port).tap { |client| client.write(text) }
  end

  def traced(&block)
    tapping(Tracepoint::Puma::STATS, &block)
  end

  # Return the values of the next event.
  def next_values(tap)
    hits = tap.hits
    sleep 0.01 until tap.hits > hits
    Array.new(4) { |i| tap.value(i, Integer) }
  end

  def until_values(tap)
    values = next_values(tap)
    values = next_values(tap) until yield(*values)
    values
  end
end
