# Defines a probe ("define NAME") or fires one ("fire NAME N") on request.
require "tracepoint"

PROBES = { "first" => Tracepoint.define(:first, {n: Integer}, provider: :late) }
$stdout.sync = true
puts "ready"
while (line = $stdin.gets)
  verb, name, times = line.split
  case verb
  when "define"
    PROBES[name] = Tracepoint.define(name.to_sym, {n: Integer}, provider: :late)
    puts "done"
  when "fire"
    fired = Array.new((times || "1").to_i) { |n| PROBES.fetch(name).fire(n) }
    puts "done #{fired.count(true)}"
  when "enabled"
    puts "done #{PROBES.values.map(&:enabled?).inspect}"
  end
end
