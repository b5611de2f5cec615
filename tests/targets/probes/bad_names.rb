# frozen_string_literal: true

# A thread whose frames, path, and name have characters that steer a terminal or a format.
BAD = "e\e[31m\e]0;owned\a;x\u202Ey\r\n z<&>\"'%s{}]]>"
GATE = Queue.new
eval("def evil\u202Emethod() GATE.pop end", nil, "/tmp/#{BAD}.rb", 5)
thread = Thread.new { send("evil\u202Emethod") }
thread.name = BAD
Thread.pass until thread.status == "sleep"
$stdout.sync = true
puts "ready"
$stdin.gets
