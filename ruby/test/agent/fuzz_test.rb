# frozen_string_literal: true

require "test_helper"
require "support/agent_target"

# Requests that no tracer would send, and large numbers of requests: neither has lasting effects.
class AgentFuzzTest < Minitest::Test
  include TestHelper
  include AgentHelper

  SOAK = ENV["RBTRACE_SOAK"] == "1"
  SEED = Integer(ENV.fetch("RBTRACE_SEED", "1"))
  # With nothing armed, each of these is refused, however it is changed.
  REFUSED = [
    { command: "status" }, { command: "disarm" }, { command: "names", from: 0, count: 1 }, { command: "arm" },
    { command: "arm", mode: "ring", ring_records: 3 }, { command: "arm", mode: "table", select: [{ owner: 1 }] },
    { command: "arm", mode: "ring", select: [{ name: "a", expressions: ["self", "1 +"] }], limit_ms: 0 },
    { command: "eval", code: nil, limit_ms: 1 }, { command: "clock", from: 1.5 }, { command: "no such" }
  ].freeze
  CODES = %w[protocol command argument state].freeze

  # Sends messages to a connection before or after its greeting.
  class Mischief
    HEAD = 12

    def initialize(client, random)
      @client = client
      @random = random
    end

    def message
      __send__(%i[noise bad_head changed_bytes changed_map wrong_values].sample(random: @random))
    end

    private

    def noise
      @random.bytes(@random.rand(1..200))
    end

    def bad_head
      head = request(REFUSED.sample(random: @random))
      at, value = [[3, @random.rand(1..255)], [4, @random.rand(256)], [5, @random.rand(2..255)], [6, @random.rand(1..255)]]
                  .sample(random: @random)
      head.setbyte(at, value)
      head
    end

    def changed_bytes
      bytes = request(REFUSED.sample(random: @random))
      @random.rand(1..4).times { bytes.setbyte(@random.rand(bytes.bytesize), @random.rand(256)) }
      bytes
    end

    def changed_map
      bytes = @client.encode(REFUSED.sample(random: @random))
      @random.rand(1..4).times { bytes.setbyte(@random.rand(bytes.bytesize), @random.rand(256)) }
      bytes = bytes.byteslice(0, @random.rand(bytes.bytesize)) if @random.rand(3).zero?
      framed(bytes)
    end

    def wrong_values
      map = REFUSED.sample(random: @random).dup
      map[map.keys.sample(random: @random)] = value(0)
      map[@random.bytes(3).unpack1("H*")] = value(0)
      request(map)
    end

    def value(depth)
      kinds = [nil, true, 2**62, -1, 0.5, "x" * @random.rand(300), [], {}]
      return kinds.sample(random: @random) if depth == 20 || @random.rand(3).zero?

      [[value(depth + 1)], { a: value(depth + 1) }].sample(random: @random)
    end

    def request(map)
      framed(@client.encode(map))
    end

    def framed(bytes)
      [bytes.bytesize, AgentClient::REQUEST, 0, 0, 7].pack("VCCvV") + bytes
    end
  end

  # Check that open descriptors, threads, and mappings are the same as before.
  def assert_untouched(target)
    watcher = connect(target)
    look = lambda do
      watcher.call("eval", code: "GC.start; [Dir.children('/proc/self/fd').size, Thread.list.size, " \
                                 "File.readlines('/proc/self/maps').grep(/memfd:rbtrace/).size]")["value"].scan(/\d+/).map(&:to_i)
    end
    before = look.call
    first = rss(target)
    yield
    # Earlier requests may still be finishing.
    eventually { look.call.zip(before).all? { |now, was| now <= was } }
    target.step
    rss(target) - first
  end

  def rss(target)
    File.read("/proc/#{target.pid}/statm").split[1].to_i * 4096
  end

  def test_malformed_messages_are_refused
    target = target()
    random = Random.new(SEED)
    count = SOAK ? 100_000 : 5_000
    grown = assert_untouched(target) do
      mischief = Mischief.new(target.connect.tap(&:close), random)
      count.times { |number| assert_refused(target, mischief.message, number, hello: random.rand(4).positive?) }
    end
    assert_operator grown, :<, 32 << 20
  end

  # The answer is an ERROR with a reason, or the end of the connection.
  def assert_refused(target, message, number, hello:)
    client = target.connect(greet: hello)
    client.socket.write(message)
    client.socket.close_write
    loop do
      type, _, _, payload = client.read_frame
      code = client.decode(payload)["code"]
      return assert_refused(target, message, number, hello: hello) if code == "busy" # earlier ones are still finishing

      assert_equal AgentClient::ERROR, type, "seed #{SEED}, message #{number}: #{message.inspect}"
      assert_includes CODES, code
    end
  rescue AgentClient::Refused => e
    raise unless e.code == "busy"

    retry
  rescue EOFError, Errno::ECONNRESET, Errno::EPIPE
    nil
  ensure
    client&.close
  end

  def test_memory_does_not_grow
    target = target("def leaf; end\nSTEP = -> { leaf }")
    cycle = lambda do |number|
      client = target.connect
      memory = client.arm(mode: %w[ring table slow][number % 3], threshold_ns: 1, select: [{ owner: "Object", kind: nil, name: nil }])
      client.call("disarm") if number.even?
      memory.close
      client.close
    rescue AgentClient::Refused => e
      raise unless e.code == "busy" # the agent has not noticed the last one's end yet

      client&.close
      retry
    end
    100.times(&cycle)
    grown = assert_untouched(target) { (SOAK ? 10_000 : 500).times(&cycle) }
    assert_operator grown, :<, 16 << 20
  end
end
