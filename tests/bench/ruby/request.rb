# frozen_string_literal: true

# Each line on its input has it serve some requests; it says the CPU of one.
$LOAD_PATH.unshift File.expand_path("../../../ruby/lib", __dir__)
require "tracepoint/agent"
require_relative "requests"

Requests.prepare
$stdout.sync = true
puts "ready"
puts Requests.cpu while $stdin.gets
