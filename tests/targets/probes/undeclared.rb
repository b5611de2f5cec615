# frozen_string_literal: true

# Fires an undeclared name with the values in each line of its input, and answers with
# the counters.
require "tracepoint"

$stdout.sync = true
Tracepoint.fire(:login, nil, plan: nil)
puts "ready"
$stdin.each_line do |line|
  eval("Tracepoint.fire(:login, #{line})")
  puts Tracepoint.stats.slice(:converted, :dropped).values.inspect
end
