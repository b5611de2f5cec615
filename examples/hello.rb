# frozen_string_literal: true

# ruby -Iruby/lib examples/hello.rb [--wait] [--count N]
# sudo rbtrace-py trace PID hello
require "tracepoint"
require_relative "handshake"

HELLO = Tracepoint.define(:hello, { count: Integer, name: String })
(shake = Handshake.new).ready
shake.rounds { |i| HELLO.fire(i, "world") }
shake.done
