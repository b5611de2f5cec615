# A parent and three children. :before is defined before the fork; after it the
# parent defines :parent_after and each child :child_after (and child 0 also
# :own). At each line on standard input, every process fires all its probes 10
# times. The answer follows when all processes have fired.
require "tracepoint"

BEFORE = Tracepoint.define(:before, {who: Integer}, provider: :fork)

def work_until_closed(who, probes, input, output)
  while input.gets
    10.times { probes.each { |probe| probe.fire(who) } }
    output.puts "done"
    output.flush
  end
end

def child(who, input, output)
  probes = [BEFORE, Tracepoint.define(:child_after, {who: Integer}, provider: :fork)]
  probes << Tracepoint.define(:own, {who: Integer}, provider: :fork) if who.zero?
  output.puts "ready"
  output.flush
  work_until_closed(who, probes, input, output)
end

def start_child(who)
  down_read, down_write = IO.pipe
  up_read, up_write = IO.pipe
  pid = fork do
    down_write.close
    up_read.close
    child(who, down_read, up_write)
    exit!
  end
  down_read.close
  up_write.close
  up_read.gets
  [pid, down_write, up_read]
end

$stdout.sync = true
children = ARGV.include?("--late") ? [] : Array.new(3) { |who| start_child(who) }
after = Tracepoint.define(:parent_after, {who: Integer}, provider: :fork)
puts "ready #{children.map(&:first).join(" ")}"
while (line = $stdin.gets)
  if line.strip == "fork"
    children << start_child(children.size)
  else
    10.times { [BEFORE, after].each { |probe| probe.fire(99) } }
    children.each { |_pid, down, _up| down.puts("go") }
    children.each { |_pid, _down, up| up.gets }
  end
  puts "done"
end
