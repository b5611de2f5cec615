# frozen_string_literal: true

require "test_helper"
require "support/agent_target"

# What is asked of the process itself.
class AgentCommandsTest < Minitest::Test
  include TestHelper
  include AgentHelper

  def test_values_and_output
    client = connect(target)
    reply = client.call("eval", code: "$stdout.puts 'out'; $stderr.puts 'err'; [1, self]")
    assert_equal ["[1, main]", "Array"], reply.values_at("value", "class")
    assert_equal({ 1 => "out\n", 2 => "err\n" }, client.channels)
    error = assert_raises(AgentClient::Refused) { client.call("eval", code: "exit!(3) if false; exit") }
    assert_equal %w[raised SystemExit], [error.code, error.reply["class"]]
    error = assert_raises(AgentClient::Refused) { client.call("eval", code: "sleep", limit_ms: 50) }
    assert_equal "time", error.code
  end

  # They are the program's, and go on.
  def test_threads_that_evaluated_code_starts
    target = target("STEP = -> { p $worker.alive? }")
    client = connect(target)
    client.call("eval", code: "$worker = Thread.new { sleep }")
    own = client.call("eval", code: "[Thread.current, $worker, Thread.main].map { |thread| Tracepoint::Agent.own?(thread) }")
    assert_equal "[true, false, false]", own["value"]
    client.call("stop")
    eventually { !File.exist?(target.path) }
    assert_raises(EOFError, SystemCallError) { client.read_frame }
    target.begin_step
    assert_equal "true\n", target.io.gets
    target.end_step
  end

  # The child writes faster than anybody reads.
  def test_a_heap_dump_waits_for_its_reader
    client = connect(target("STEP = -> {}; KEPT = Array.new(50_000) { |i| 'text %06d' % i }"))
    client.send_request("heapdump")
    bytes = +""
    until (frame = client.read_frame).first == AgentClient::REPLY
      bytes << frame.last
    end
    assert_equal bytes.bytesize, client.decode(frame.last)["bytes"]
    assert_equal 50_000, bytes.scan(/"text \d{6}"/).uniq.size
    bytes.each_line { |line| assert line.start_with?("{"), line }
  end

  def test_a_dump_that_fails_says_why
    target = target("STEP = -> {}\n$VERBOSE = nil\nrequire 'objspace'\ndef ObjectSpace.dump_all(**) raise(IOError, 'the reason'); end")
    error = assert_raises(AgentClient::Refused) { connect(target).call("heapdump") }
    assert_equal ["system", "the dump failed: IOError: the reason"], [error.code, error.reply["message"]]
    target.step
  end
end
