# frozen_string_literal: true

require "test_helper"
require "support/agent_target"

# The conditions for a connection, and its rights: docs/agent/access.md, "The proof" and "Consent".
class AgentProofTest < Minitest::Test
  include TestHelper
  include AgentHelper

  SELECT = [{ owner: "Object", kind: nil, name: "leaf" }].freeze
  WITH_CODE = [SELECT.first.merge(expressions: ["1"])].freeze

  def refused
    assert_raises(AgentClient::Refused) { yield }.code
  end

  def begin_greeting(target)
    client = connect(target, greet: false)
    [client, client.call("hello", magic: "rbtrace-agent", versions: [1])["address"]]
  end

  def text_at(target, address)
    File.binread("/proc/#{target.pid}/mem", 4096, address)
  end

  def test_the_text
    target = target()
    texts = Array.new(3) do
      client, address = begin_greeting(target)
      text = text_at(target, address)
      assert_match(/\Arbtrace-proof-1:\h{4080}\z/, text)
      assert_equal "eval", client.call("prove", answer: client.answer_to(text))["level"]
      text
    end
    assert_equal texts, texts.uniq
  end

  # Ruby moves and frees its own memory. The text must stay at the announced address.
  def test_the_text_stays_where_it_is
    target = target(<<~RUBY)
      STEP = lambda do
        GC.start
        # Compaction moves every object, if Ruby supports it.
        GC.verify_compaction_references(toward: :empty) if GC.respond_to?(:verify_compaction_references)
      rescue NotImplementedError
        nil
      ensure
        100_000.times { String.new(capacity: 4096) }
        GC.start
      end
    RUBY
    client, address = begin_greeting(target)
    before = text_at(target, address)
    target.step
    assert_equal before, text_at(target, address)
    assert_equal "eval", client.call("prove", answer: client.answer_to(before))["level"]
  end

  def refuse(client, answer)
    assert_equal "denied", refused { client.call("prove", answer: answer) }
    assert_raises(EOFError, Errno::ECONNRESET) { client.answer }
  end

  def test_a_wrong_answer
    target = target()
    client, address = begin_greeting(target)
    old = text_at(target, address)
    client.close
    [client.answer_to(old), "", "x", "0" * 32, nil, 7, ["x"]].each { |answer| refuse(begin_greeting(target).first, answer) }
  end

  EXPECTING = <<~RUBY
    $later = 0
    Tracepoint::Agent.singleton_class.prepend(Module.new do
      def now
        super + $later
      end
    end)
    STEPS = [-> { $stdout.puts(Tracepoint::Agent.expect(%d)) }, -> { $later = 6 }]
    STEP = -> { STEPS.shift.call }
  RUBY

  def expecting(pid)
    target = target(format(EXPECTING, pid))
    target.begin_step
    address = Integer(target.io.gets)
    target.end_step
    [target, address]
  end

  # As in load.rb: both requests may arrive before the agent reads.
  def test_a_text_that_is_told_before
    target, address = expecting(Process.pid)
    client = connect(target, greet: false)
    client.send_request("hello", magic: "rbtrace-agent", versions: [1])
    client.send_request("prove", answer: client.answer_to(text_at(target, address)))
    replies = Array.new(2) { client.read_frame }
    assert_equal [[AgentClient::REPLY, 1], [AgentClient::REPLY, 2]], replies.map { |type, _, request| [type, request] }
    hello, prove = replies.map { |frame| client.decode(frame.last) }
    assert_equal [address, "eval"], [hello["address"], prove["level"]]
    # The announced text works once, and only for this connection.
    refute_equal address, begin_greeting(target).last
  end

  def test_a_text_that_another_is_told
    target, address = expecting(Process.pid + 1)
    client, other = begin_greeting(target)
    refute_equal address, other
    refuse(client, client.answer_to(text_at(target, address)))
  end

  # The pid may belong to another process by then.
  def test_a_text_that_was_told_long_before
    target, address = expecting(Process.pid)
    target.step
    refute_equal address, begin_greeting(target).last
  end

  # One process's answer is useless to another process, and so is the text.
  def test_an_answer_of_another_process
    target = target()
    [Process.pid + 1, Process.ppid, 0].each do |pid|
      client, address = begin_greeting(target)
      refuse(client, client.answer_to(text_at(target, address), pid))
    end
    client, address = begin_greeting(target)
    refuse(client, text_at(target, address))
  end

  def test_a_relayed_answer
    target = target()
    near, far = UNIXSocket.pair
    child = fork do
      far.close
      client, address = begin_greeting(target)
      near.puts(address)
      near.write(refused { client.call("prove", answer: near.gets.chomp) })
    ensure
      exit!(true)
    end
    near.close
    text = text_at(target, far.gets.to_i)
    far.puts(AgentClient.allocate.answer_to(text))
    assert_equal "denied", far.read
  ensure
    far&.close
    Process.wait(child) if child
  end

  def test_nothing_is_answered_before
    target = target("$done = nil; STEP = -> { p $done }")
    eval = { code: "$done = true" }
    client = connect(target, greet: false)
    assert_equal "protocol", refused { client.call("eval", **eval) }
    client, = begin_greeting(target)
    assert_equal "protocol", refused { client.call("eval", **eval) }
    client, = begin_greeting(target)
    assert_equal "protocol", refused { client.call("hello", magic: "rbtrace-agent", versions: [1]) }
    client, = begin_greeting(target)
    client.frame(AgentClient::DATA, 0, 3, "x")
    assert_equal "protocol", refused { client.answer }
    target.begin_step
    assert_equal "nil\n", target.io.gets
    target.end_step
  end

  def test_it_is_asked_for_once
    client = connect(target)
    assert_equal "state", refused { client.call("prove", answer: "") }
    assert_equal "state", refused { client.call("hello", magic: "rbtrace-agent", versions: [1]) }
    assert_equal "2", client.call("eval", code: "1 + 1")["value"]
  end

  def consented(level)
    target = target("def leaf; end\nSTEP = -> { leaf }", env: { "TRACEPOINT_AGENT" => level })
    client = connect(target, proves: false)
    assert_equal level, client.hello["level"]
    client
  end

  def test_observe
    client = consented("observe")
    %w[eval heapdump shapesdump fork stop].each { |command| assert_equal "denied", refused { client.call(command) } }
    assert_equal "denied", refused { client.call("memory") }
    assert_equal "denied", refused { client.call("arm", mode: "table", select: SELECT) }
    assert_equal "denied", refused { client.call("arm", mode: "table", offsets: AgentHelper::OFFSETS) }
    assert_equal "denied", refused { client.call("arm", mode: "table", untested: true) }
    assert(client.call("backtraces")["threads"].any? { |thread| thread["main"] })
    assert_equal 1, client.arm(mode: "table", untested: false).state
    assert_operator client.call("names")["methods"].size, :>, 0
    assert_equal 2, client.call("disarm")["state"]
  end

  def test_trace
    client = consented("trace")
    assert_operator client.call("memory")["rss"], :>, 0
    assert_equal "denied", refused { client.call("arm", mode: "ring", select: WITH_CODE) }
    assert_equal "denied", refused { client.call("arm", mode: "ring", select: SELECT, offsets: AgentHelper::OFFSETS) }
    assert_equal "denied", refused { client.call("arm", mode: "ring", select: SELECT, untested: true) }
    assert_equal "denied", refused { client.call("eval", code: "1") }
    assert_equal 1, client.arm(mode: "ring", select: SELECT).state
  end

  def test_eval
    client = consented("eval")
    assert_equal "3", client.call("eval", code: "1 + 2")["value"]
    assert_equal 1, client.arm(mode: "ring", select: WITH_CODE, offsets: AgentHelper::OFFSETS).state
  end

  def test_a_level_that_is_none
    output = ruby("require 'tracepoint/agent'; p Tracepoint::Agent::Consent.level", env: { "TRACEPOINT_AGENT" => "all" })
    assert_match(/TRACEPOINT_AGENT must be one of observe, trace, eval, not "all"/, output)
    assert_match(/^nil$/, output)
  end

  # The proof does not need the agent's hook.
  def test_without_the_hook
    program = "Tracepoint::Agent::Native.instance_variable_set(:@reason, 'none'); STEP = -> {}"
    assert_equal "eval", connect(target(program)).hello["level"]
  end
end
