# frozen_string_literal: true

# A span with known latencies: of every hundred, 90 take 1 ms, 9 take 10 ms, and
# one takes 100 ms. A round has one hundred.
#
# ruby -Iruby/lib examples/latency.rb [--wait] [--count N]
# sudo rbtrace-py latency PID work
# sudo rbtrace-py latency PID work --by kind
require "tracepoint"
require_relative "handshake"

WORK = Tracepoint.define_span(:work, { kind: Symbol, sleep_ms: Integer })

KINDS = { fast: [90, 1], medium: [9, 10], slow: [1, 100] }.freeze
HUNDRED = KINDS.flat_map { |kind, (share, ms)| [[kind, ms]] * share }.freeze

random = Random.new(23)
shake = Handshake.new
shake.ready
shake.rounds(pause: 0) do
  HUNDRED.shuffle(random: random).each do |kind, ms|
    WORK.measure(kind, ms) { sleep(ms / 1000.0) }
  end
end
shake.done
