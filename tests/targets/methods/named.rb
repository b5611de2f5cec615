# frozen_string_literal: true

# Probes that have the names of the agent's events in rbtrace-py.
require "tracepoint"
require "tracepoint/agent"

$stdout.sync = true
PROBES = %i[method gc raise object].map { |name| Tracepoint.define(name, { number: Integer }) }

def fire
  3.times { |number| PROBES.each { |probe| probe.fire(number) } }
end

puts "ready"
$stdin.each_line do
  fire
  puts "done"
end
