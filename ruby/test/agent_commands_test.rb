# frozen_string_literal: true

require "test_helper"
require "support/agent_target"

# What is asked of the process itself.
class AgentCommandsTest < Minitest::Test
  include TestHelper
  include AgentHelper

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
