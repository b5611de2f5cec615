# frozen_string_literal: true

# Spans in spans, and all ways in which a span ends. Each request makes two queries
# and renders a tree of four levels, one span per node. One request in ten is not
# found (throw), and one fails (raise), both after their first query.
#
# ruby -Iruby/lib examples/nested_spans.rb [--wait] [--count N]
# sudo rbtrace-py latency PID request query render
# sudo rbtrace-py trace PID 'request__*' 'query__*' 'render__*'
require "tracepoint"
require_relative "handshake"

REQUEST = Tracepoint.define_span(:request, { id: Integer, path: String })
QUERY = Tracepoint.define_span(:query, { table: Symbol })
RENDER = Tracepoint.define_span(:render, { depth: Integer })

class Failed < StandardError; end

def query(table)
  QUERY.measure(table) { sleep 0.001 }
end

def render(depth)
  RENDER.measure(depth) do
    sleep 0.0005
    render(depth - 1) if depth > 1
  end
end

def request(id)
  REQUEST.measure(id, "/items/#{id % 10}") do
    query(:users)
    throw :not_found if id % 10 == 3
    raise Failed if id % 10 == 7

    query(:items)
    render(4)
  end
end

shake = Handshake.new
shake.ready
shake.rounds(pause: 0.02) do |id|
  catch(:not_found) { request(id) }
rescue Failed
  nil
end
shake.done
