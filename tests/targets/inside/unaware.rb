# frozen_string_literal: true

# A program without the agent. Each line on standard input is a question about the
# program, which it answers in one line. ARGV: Ruby code to run first.
$stdout.sync = true
ARGV.each { |code| eval code }

def fork_one
  down, up = IO.pipe, IO.pipe
  pid = fork do
    down[1].close
    up[0].close
    up[1].puts "ready"
    up[1].flush
    down[0].gets
    exit!
  end
  up[0].gets
  $children = [*$children, down[1]]
  pid
end

def left
  GC.start
  files = Dir.children("/proc/self/fd").map { |fd| File.readlink("/proc/self/fd/#{fd}") rescue nil }
  kinds = files.compact.map { |path| path[/\A[a-z_]+:\[?[a-z]*/] || path }.sort
  [Thread.list.size, ThreadGroup::Default.list.size, kinds - ["anon_inode:[eventpoll"]].inspect
end

# Keep the GVL until a line arrives. The C library's system(3) keeps waiting if
# a signal arrives; a read would end with EINTR.
def hold
  require "fiddle"
  system = Fiddle::Handle::DEFAULT["system"]
  function = Fiddle::Function.new(system, [Fiddle::TYPE_VOIDP], Fiddle::TYPE_INT, need_gvl: true)
  puts "holding"
  function.call("read line")
end

puts "ready #{Process.pid}"
while (line = $stdin.gets)
  puts(
    case line.strip
    when "fork" then fork_one
    when "left" then left
    when "hold" then hold
    when "threads" then Thread.list.size
    else "done"
    end
  )
end
