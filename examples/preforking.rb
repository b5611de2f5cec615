# frozen_string_literal: true

# A server with a parent and three children. Probes are defined before the fork, and
# on both sides after it:
#
#   prefork:before(worker, i)   fired by all four; the parent is worker -1
#   prefork:parent(i)           defined after the fork, by the parent
#   prefork:child(worker, i)    defined after the fork, by each child
#   prefork:job(worker)         a span, defined before the fork, run by all four
#
# ruby -Iruby/lib examples/preforking.rb [--wait] [--count N]
# sudo rbtrace-py count PID 'prefork:*' --subprocesses     (the parent's PID)
require "tracepoint"
require_relative "handshake"

CHILDREN = 3
BEFORE = Tracepoint.define(:before, { worker: Integer, i: Integer }, provider: :prefork)
JOB = Tracepoint.define_span(:job, { worker: Integer }, provider: :prefork)

def round(worker, index)
  JOB.measure(worker) do
    BEFORE.fire(worker, index)
    yield index
  end
end

def child(worker, shake, started, go)
  mine = Tracepoint.define(:child, { worker: Integer, i: Integer }, provider: :prefork)
  started.puts(worker)
  started.close
  go.read # until the parent closes its end
  shake.rounds { |i| round(worker, i) { mine.fire(worker, i) } }
end

shake = Handshake.new
started_read, started = IO.pipe
go_read, go = IO.pipe

children = Array.new(CHILDREN) do |worker|
  fork do
    started_read.close
    go.close
    child(worker, shake, started, go_read)
  end
end
started.close
go_read.close
own = Tracepoint.define(:parent, { i: Integer }, provider: :prefork)
parent = Process.pid
at_exit { children.each { |pid| Process.kill(:TERM, pid) } if Process.pid == parent && !shake.count }

CHILDREN.times { started_read.gets }
puts "children #{children.join(" ")}"
shake.ready
go.close
shake.rounds { |i| round(-1, i) { own.fire(i) } }
children.each { |pid| Process.wait(pid) }
shake.done
