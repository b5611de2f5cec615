# Fires :one N times at "fire N". Executes the same program again at "exec".
require "tracepoint"

ONE = Tracepoint.define(:one, {n: Integer}, provider: :exec)

$stdout.sync = true
puts ARGV.empty? ? "ready" : "done"
while (line = $stdin.gets)
  verb, times = line.split
  exec("ruby", *$LOAD_PATH.first(1).map { |dir| "-I#{dir}" }, __FILE__, "again") if verb == "exec"
  fired = Array.new(times.to_i) { |n| ONE.fire(n) }
  puts "done #{fired.count(true)}"
end
