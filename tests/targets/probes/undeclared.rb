# frozen_string_literal: true

# Fires a name that nobody declared, with what each line of its input says, and
# answers with the counters.
require "tracepoint"

$stdout.sync = true
Tracepoint.fire(:login, nil, plan: nil)
puts "ready"
$stdin.each_line do |line|
  eval("Tracepoint.fire(:login, #{line})")
  puts Tracepoint.stats.slice(:converted, :dropped).values.inspect
end
