# frozen_string_literal: true

require "socket"
require "stringio"

# A tracer in Ruby, written from docs/agent.md, to test the agent with.
class AgentClient
  REQUEST = 1
  DATA = 2
  REPLY = 3
  ERROR = 4
  EVENT = 5
  CANCEL = 6

  class Refused < StandardError
    attr_reader :reply

    def initialize(reply)
      super("#{reply["code"]}: #{reply["message"]}")
      @reply = reply
    end

    def code
      reply["code"]
    end
  end

  attr_reader :socket, :channels, :events, :hello

  # proves: whether to read the text that proves access to the memory
  def initialize(path, greet: true, proves: true)
    @socket = UNIXSocket.new(path)
    @events = []
    @number = 0
    @hello = greet_agent(proves) if greet
  end

  def greet_agent(proves)
    address = call("hello", magic: "rbtrace-agent", versions: [1])["address"]
    call("prove", answer: proves ? answer_to(File.binread("/proc/#{peer_pid}/mem", 4096, address)) : nil)
  end

  # pid: the client's pid as the agent sees it
  def answer_to(text, pid = Process.pid)
    digits = text.byteslice(16..-1)
    format("%032x", Array.new(136) { |i| digits[30 * i, 30].hex }.inject { |sum, number| (sum * pid + number) % (2**127 - 1) })
  end

  def peer_pid
    @socket.getsockopt(:SOCKET, :PEERCRED).unpack("i").first
  end

  def close
    @socket.close
  end

  # Return the reply, or raise the refusal. #channels has the output of the channels.
  def call(command, **arguments)
    send_request(command, **arguments)
    answer
  end

  def send_request(command, **arguments)
    body = encode({ command: command }.merge(arguments))
    @number += 1
    return frame(REQUEST, 0, @number, body) if body.bytesize <= 65_536

    (0...body.bytesize).step(65_536) { |at| frame(DATA, 0, @number, body.byteslice(at, 65_536)) }
    frame(REQUEST, 1, @number, "")
  end

  def cancel
    frame(CANCEL, 0, @number, "")
  end

  def frame(type, flags, request, payload)
    @socket.write([payload.bytesize, type, flags, 0, request].pack("VCCvV") + payload)
  end

  def answer
    @channels = Hash.new { |channels, channel| channels[channel] = String.new(encoding: "BINARY") }
    loop do
      type, flags, request, payload = read_frame
      next @channels[flags] << payload if type == DATA

      map = decode(flags == 1 ? @channels.delete(0) : payload)
      next @events << map if type == EVENT
      raise Refused, map if type == ERROR
      raise "of another request" unless request == @number

      return map
    end
  end

  # Return the last event of a connection that the agent has ended.
  def last_event
    answer
  rescue EOFError, Errno::ECONNRESET
    @events.last
  end

  # The reply to arm, and its files.
  def arm(**arguments)
    @files = []
    reply = call("arm", **arguments)
    AgentMemory.new(*@files, reply)
  end

  def read_frame
    head, _, _, *controls = @socket.recvmsg(12, 0, 256, scm_rights: true)
    raise EOFError if head.nil? || head.empty?

    controls.each { |control| @files = control.unix_rights if control.cmsg_is?(:SOCKET, :RIGHTS) }
    head << @socket.readpartial(12 - head.bytesize) while head.bytesize < 12
    length, type, flags, zero, request = head.unpack("VCCvV")
    raise "a head that is none" unless zero.zero? && length <= 65_536

    [type, flags, request, length.zero? ? "" : @socket.read(length)]
  end

  def encode(value)
    case value
    when nil then "n"
    when true then "t"
    when false then "f"
    when Integer then ["i", value].pack("aq<")
    when Float then ["d", value].pack("aE")
    when String then ["s", value.bytesize, value.b].pack("aVa*")
    when Array then ["a", value.size].pack("aV") + value.map { |item| encode(item) }.join
    when Hash
      ["m", value.size].pack("aV") + value.map { |key, item| [key.to_s.bytesize, key.to_s].pack("Va*") + encode(item) }.join
    end.b
  end

  def decode(bytes)
    io = StringIO.new(bytes)
    value = decode_from(io)
    raise "bytes are left" unless io.eof?

    value
  end

  def decode_from(io)
    number = -> { io.read(4).unpack1("V") }
    text = -> { (io.read(number.call) || "").force_encoding("UTF-8") }
    case io.read(1)
    when "n" then nil
    when "t" then true
    when "f" then false
    when "i" then io.read(8).unpack1("q<")
    when "d" then io.read(8).unpack1("E")
    when "s" then text.call
    when "b" then text.call.b
    when "a" then Array.new(number.call) { decode_from(io) }
    when "m" then Array.new(number.call) { [text.call, decode_from(io)] }.to_h
    end
  end
end

# The shared memory, read as documented in docs/agent/memory.md.
class AgentMemory
  # text: the bytes of a TEXT record
  Record = Struct.new(:time, :method, :depth, :kind, :flags, :text) # rubocop:disable Lint/StructNewOverride
  KINDS = %i[none entry return c_entry c_return lost gc_begin gc_end raise object cpu stack place thread text].freeze
  COUNTERS = %i[no_stream no_method too_deep orphans abandoned no_block no_values].freeze

  attr_reader :reply, :data, :control

  def initialize(data, control, reply)
    @data = data
    @control = control
    @reply = reply
    raise "not the magic" unless @data.pread(8, 0) == "RBTRAGT1"

    @tails = Hash.new(0)
  end

  def close
    [@data, @control].each(&:close)
  end

  def u32(at)
    @data.pread(4, at).unpack1("L<")
  end

  def u64(at)
    @data.pread(8, at).unpack1("Q<")
  end

  def state
    u32(192)
  end

  def conditions
    u32(208)
  end

  def counters
    COUNTERS.each_with_index.to_h { |name, i| [name, u64(216 + 8 * i)] }
  end

  def dropped
    Array.new(u32(204)) { |s| u64(u64(128) + 64 * s + 16) }.sum
  end

  def ns(ticks)
    ticks * u64(40) >> 32
  end

  def methods_seen
    u32(196)
  end

  def method_record(index)
    at = u64(80) + 128 * index
    words = %i[entries calls total self sum max].zip(@data.pread(48, at + 64).unpack("Q<6")).to_h
    words.merge(kind: u32(at + 16), selected: u32(at + 20))
  end

  # Return counts by bucket.
  def histogram(index)
    histograms.fetch(index, {})
  end

  # Return counts by method number and bucket, including durations that wait to be counted.
  def histograms
    found = Hash.new { |methods, index| methods[index] = Hash.new(0) }
    (1...u32(200)).each do |block|
      index, part, level = place(block)
      @data.pread(64, u64(112) + (64 * block)).unpack("C64").each_with_index do |count, i|
        found[index][(64 * part) + i] += count << (8 * level) if count.positive?
      end
    end
    waiting.each { |index, bucket| found[index][bucket] += 1 }
    found
  end

  # Return the method, part, and level of a block.
  def place(block)
    @data.pread(8, u64(96) + (8 * block)).unpack("L<S<S<")
  end

  # Return method and bucket of each stream's last duration, which no counter includes yet.
  def waiting
    counters = Array.new(streams) { |stream| u32(u64(128) + (64 * stream) + 48) }
    counters.reject(&:zero?).map do |counter|
      index, part, = place(counter / 64)
      [index, (64 * part) + (counter % 64)]
    end
  end

  def streams
    u32(204)
  end

  # Return new records of a stream, and tell the agent.
  def read(stream)
    records = u32(152)
    ring = u64(144) + stream * records * 16
    tail = @tails[stream]
    published = u64(u64(128) + 64 * stream)
    found = (tail...published).map do |n|
      bytes = @data.pread(16, ring + 16 * (n % records))
      time, method, depth, kind, flags = bytes.unpack("Q<L<S<CC")
      Record.new(time, method, depth, KINDS.fetch(kind), flags, bytes.byteslice(0, flags & 15))
    end
    @tails[stream] = published
    @control.pwrite([published].pack("Q<"), 64 * (stream + 1))
    found
  end

  # Return the records of all streams with method events, by stream.
  def read_all
    Array.new(streams) { |stream| read(stream) }.reject { |records| records.all? { |r| %i[stack place thread].include?(r.kind) } }
  end
end
