# frozen_string_literal: true

require "test_helper"
require "support/agent_target"
require "shellwords"

# A program that is held until the tracer that started it has armed.
class AgentStartTest < Minitest::Test
  include TestHelper
  include AgentHelper

  MINUTES = 600_000

  # Prints messages before and after the agent's file is loaded.
  PROGRAM = <<~'RUBY'
    $stdout.sync = true
    at_exit { puts "exit" }
    Thread.new do
      sleep 0.001 until defined?(Tracepoint::Agent.path) && Tracepoint::Agent.path
      puts "ready #{Tracepoint::Agent.path}"
      $told = true
    end
    require "tracepoint/agent"
    sleep 0.001 until $told
    def first; end
    first
    puts "first"
  RUBY

  def start(milliseconds, tracer = Process.pid, program = PROGRAM)
    env = { "TRACEPOINT_AGENT_WAIT" => "#{milliseconds}:#{tracer}" }
    io = IO.popen([env, RbConfig.ruby, "-I#{AgentTarget::LIB}", "-e", program, { err: %i[child out] }], "r+")
    (@open << io).last
  end

  def path_of(program)
    program.gets[/\Aready (.*)/, 1]
  end

  def client(path)
    AgentClient.new(path).tap { |client| @open.unshift(client) }
  end

  def test_it_begins_when_it_is_armed
    program = start(MINUTES)
    client = client(path_of(program))
    memory = client.arm(mode: "ring", select: [{ owner: nil, kind: nil, name: "first" }])
    assert memory.reply["held"]
    assert_equal "first\n", program.gets
    assert_equal 2, memory.read_all.sum { |records| records.count { |record| %i[entry return].include?(record.kind) } }
  end

  def test_what_is_armed_later_is_told_that_it_is_late
    program = start(1, Process.pid, "#{PROGRAM}$stdin.read")
    client = client(path_of(program))
    assert_equal "first\n", program.gets
    refute client.arm(mode: "ring").reply["held"]
  end

  def test_who_asks_and_hangs_up_is_waited_for_no_more
    program = start(MINUTES)
    client(path_of(program)).close
    assert_equal "first\n", program.gets
  end

  # A client that does not send `hello` is not recognized.
  def test_who_only_knocks_is_not_the_tracer
    program = start(MINUTES)
    path = path_of(program)
    UNIXSocket.new(path).close
    client = client(path)
    assert client.arm(mode: "ring").reply["held"]
  end

  def test_only_the_tracers_own_child_waits
    assert_match(/\Aready .*\nfirst\nexit\n\z/, start(MINUTES, Process.ppid).read)
    inner = "system(RbConfig.ruby, '-I#{AgentTarget::LIB}', '-e', #{PROGRAM.dump})"
    assert_match(/\Aready .*\nfirst\nexit\n\z/, start(MINUTES, Process.pid, "require 'rbconfig'; #{inner}").read)
  end

  def test_what_it_executes_waits_again
    program = start(MINUTES, Process.pid, "exec('#{RbConfig.ruby}', '-I#{AgentTarget::LIB}', '-e', #{PROGRAM.dump})")
    client = client(path_of(program))
    assert client.arm(mode: "ring").reply["held"]
  end

  def test_signals_are_heard
    program = start(MINUTES)
    path_of(program)
    Process.kill(:TERM, program.pid)
    assert_match(/\Aexit\n/, program.read)
    program.close
    assert_equal Signal.list["TERM"], $?.termsig
  end

  def test_the_tracers_death_ends_it
    words = "#{RbConfig.ruby} -I#{AgentTarget::LIB} -e #{Shellwords.escape(PROGRAM)}"
    shell = IO.popen(["sh", "-c", "TRACEPOINT_AGENT_WAIT=#{MINUTES}:$$ #{words} & wait"])
    @open << shell
    path_of(shell)
    Process.kill(:KILL, shell.pid)
    assert_equal "first\nexit\n", shell.read
  end

  def test_what_is_no_such_value_is_nothing
    ["", "x", "1", "#{MINUTES}:", "-1:#{Process.pid}", "#{MINUTES}:#{Process.pid}:1"].each do |value|
      env = { "TRACEPOINT_AGENT_WAIT" => value }
      output = IO.popen([env, RbConfig.ruby, "-I#{AgentTarget::LIB}", "-e", PROGRAM], &:read)
      assert_match(/first\nexit\n\z/, output)
    end
  end
end
