# Threads that share native threads (Ruby 3.3 and later, RUBY_MN_THREADS=1): of the two, the
# named one burns CPU in its own method, and the other waits.
if ARGV.delete("agent")
  $LOAD_PATH.unshift File.expand_path("../../../ruby/lib", __dir__)
  require "tracepoint/agent"
end
$stdout.sync = true

def done
  puts "done #{Thread.current.native_thread_id}"
end

def burn_a
  done
  nil while $turn == "a"
end

def burn_b
  done
  nil while $turn == "b"
end

turns = %w[a b].to_h { |name| [name, Queue.new] }
turns.each do |name, queue|
  Thread.new do
    Thread.current.name = name
    send(:"burn_#{name}") while queue.pop
  end
end
Thread.new { Thread.current.name = "last" and sleep }
Thread.pass until Thread.list.all? { |thread| !%w[a b last].include?(thread.name) || thread.stop? }
puts "ready"
while (name = gets)
  turns[$turn = name.chomp] << true
end
