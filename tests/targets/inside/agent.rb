# frozen_string_literal: true

# A program that loads the agent and has threads with known stacks.
$LOAD_PATH.unshift File.expand_path("../../../ruby/lib", __dir__)
require "tracepoint/agent"

$stdout.sync = true
ANSWER = 42

def wait_inside(queue)
  queue.pop
end

worker = Thread.new { wait_inside(Queue.new) }
worker.name = "worker"
Thread.pass until worker.stop?
puts "ready #{Tracepoint::Agent.path}"
$stdin.each_line { |line| puts "done #{line}" }
