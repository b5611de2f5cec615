# frozen_string_literal: true

require "test_helper"
require "support/agent_target"

# The agent's socket: its path, admission of clients, and cleanup.
class AgentSocketTest < Minitest::Test
  include TestHelper
  include AgentHelper

  NOBODY = 65_534

  def test_place
    target = target(env: { "XDG_RUNTIME_DIR" => nil })
    stat = File.read("/proc/#{target.pid}/stat").rpartition(")").last.split
    base = ["/run/user/#{Process.euid}", "/tmp"].find { |one| File.directory?(one) }
    assert_equal "#{base}/rbtrace-agent-#{Process.euid}/#{target.pid}-#{stat[19]}.sock", target.path
    assert_equal 0o140600, File.stat(target.path).mode
    assert_equal 0o040700, File.stat(File.dirname(target.path)).mode
    assert_equal target.pid, connect(target).peer_pid
  end

  def test_hello
    hello = connect(target()).hello
    assert_equal ["eval", RUBY_VERSION, RUBY_DESCRIPTION, true, nil], hello.values_at("level", "ruby", "description", "native", "armed_by")
    assert_equal [Process.euid, "-e", Tracepoint::VERSION], hello.values_at("uid", "program", "gem")
  end

  def test_gone_at_exit
    { "exit" => "", "abort" => "abort", "raise" => "raise 'x'",
      "a signal" => "Process.kill(:TERM, $$); sleep" }.each do |how, code|
      target = target("STEP = -> { #{code} }")
      assert File.socket?(target.path)
      target.begin_step
      target.close
      refute File.exist?(target.path), how
    end
  end

  def test_stale_ones_are_cleaned
    killed = target()
    killed.kill
    assert File.socket?(killed.path)
    directory = File.dirname(killed.path)
    other = File.join(directory, "note.sock")
    File.write(other, "")
    living = target()
    refute File.exist?(killed.path)
    assert File.exist?(other)
    target()
    assert File.socket?(living.path)
  ensure
    File.unlink(other) if other && File.exist?(other)
  end

  def test_a_directory_of_its_own
    Dir.mktmpdir do |dir|
      File.chmod(0o700, dir)
      target = target(env: { "TRACEPOINT_AGENT_DIR" => dir })
      assert_equal dir, File.dirname(target.path)
      connect(target)
    end
  end

  # Another user may have created it first: as a link, or open to others.
  def test_a_directory_that_is_not_ours
    Dir.mktmpdir do |dir|
      open = File.join(dir, "open")
      Dir.mkdir(open)
      File.chmod(0o755, open)
      private = File.join(dir, "private")
      Dir.mkdir(private, 0o700)
      File.symlink(private, File.join(dir, "link"))
      File.write(File.join(dir, "file"), "")
      %w[open link file].each do |name|
        output = ruby("require 'tracepoint/agent'; p Tracepoint::Agent.path",
                      env: { "TRACEPOINT_AGENT_DIR" => File.join(dir, name) })
        assert_match(/no socket could be made in .*#{name}\nnil\n/, output)
      end
      assert_empty Dir.children(private)
    end
  end

  def test_another_user_cannot_connect
    skip "needs root" unless Process.euid.zero?
    target = target()
    # Even if the directory is open to everyone, the agent checks the client's identity.
    Dir.mktmpdir do |dir|
      File.chmod(0o755, dir)
      link = File.join(dir, "s")
      File.link(target.path, link)
      File.chmod(0o777, target.path)
      assert_equal "EACCES", as_nobody { UNIXSocket.new(target.path) }
      assert_equal "closed", as_nobody { UNIXSocket.new(link) }
    end
    assert_equal target.pid, connect(target).hello["pid"]
  end

  # Root may connect to any target; the directory belongs to the target's user.
  def test_root_and_a_target_of_another_user
    skip "needs root" unless Process.euid.zero?
    target = target(user: NOBODY)
    assert_equal "rbtrace-agent-#{NOBODY}", File.basename(File.dirname(target.path))
    assert_equal NOBODY, File.stat(target.path).uid
    client = connect(target)
    assert_equal NOBODY, client.hello["uid"]
    assert_equal "7", client.call("eval", code: "3 + 4")["value"]
  end

  def as_nobody
    reader, writer = IO.pipe
    pid = fork do
      Process::UID.change_privilege(NOBODY)
      socket = yield
      # The agent closes the connection before reading or sending anything.
      writer.write(socket.read(1).nil? ? "closed" : "open")
    rescue SystemCallError => e
      writer.write(e.is_a?(Errno::ECONNRESET) ? "closed" : e.class.name.split("::").last)
    ensure
      exit!(0)
    end
    writer.close
    Process.wait(pid)
    reader.read
  end

  FORKS = {
    "fork" => "pid = fork { %s }",
    "Process.fork" => "pid = Process.fork { %s }",
    "Kernel.fork" => "pid = Kernel.fork { %s }",
    "fork without a block" => "pid = fork; unless pid; %s; exit; end"
  }.freeze

  FORKS.each do |how, code|
    define_method("test_children_of_#{how.tr(" .", "__")}") { assert_child(code) }
  end

  # A child has its own socket and nothing armed. Arming it does not affect the parent.
  def assert_child(code)
    says = 'puts "child " + Tracepoint::Agent.path; $stdout.flush; $stdin.gets'
    target = target("STEP = -> { #{format(code, says)}; Process.wait(pid) }")
    client = connect(target)
    memory = client.arm(mode: "ring")
    target.begin_step
    path = target.io.gets[/child (.*)/, 1]
    refute_equal target.path, path
    child = connect(target, path: path)
    assert_equal [child.peer_pid, nil], child.hello.values_at("pid", "armed_by")
    refute_equal target.pid, child.peer_pid
    assert_equal child.peer_pid, child.arm(mode: "ring").u32(24)
    child.close
    target.io.puts
    target.end_step
    refute File.exist?(path)
    assert_equal [1, 2], [memory.state, client.call("disarm")["state"]]
  end

  # Ruby ends such a child with _exit, so the socket remains until the next agent starts.
  def test_a_child_of_popen
    target = target(<<~RUBY)
      STEP = -> { IO.popen("-") { |io| io ? puts(io.gets, io.gets) : puts("child \#{Tracepoint::Agent.path}", "over") } }
    RUBY
    client = connect(target)
    memory = client.arm(mode: "ring")
    target.begin_step
    refute_equal target.path, target.io.gets[/child (.*)/, 1]
    assert_equal "over\n", target.io.gets
    target.end_step
    assert_equal [1, 2], [memory.state, client.call("disarm")["state"]]
  end

  def test_daemon
    Dir.mktmpdir do |dir|
      out = File.join(dir, "out")
      stop = File.join(dir, "stop")
      File.mkfifo(stop)
      ruby(<<~RUBY)
        require "tracepoint/agent"
        Process.daemon
        File.write("#{out}.new", Tracepoint::Agent.path)
        File.rename("#{out}.new", "#{out}")
        File.read("#{stop}")
      RUBY
      path = eventually { File.exist?(out) && File.read(out) }
      client = AgentClient.new(path)
      assert_equal client.hello["pid"], client.peer_pid
      File.write(stop, "")
      eventually { !File.exist?(path) }
    end
  end

  # Ruby does not know about such a fork. The parent's arming must not affect the child.
  def test_a_fork_behind_rubys_back
    target = target(behind_rubys_back("i = 0; leaf while (i += 1) < 1000; exit!(7)"))
    client = connect(target)
    memory = client.arm(mode: "ring")
    assert_equal "status 7\n", said(target)
    names = names_of(client)
    assert_equal 1, (memory.read_all.flatten.count { |r| r.kind == :entry && names[r.method] == "Object#leaf" })
  end

  # The child's next actions must neither crash it nor remove the parent's agent.
  def test_what_such_a_child_does
    codes = ["Tracepoint::Agent.stop", "Tracepoint::Agent.finish"] # at_exit calls the latter
    # Up to 3.2, hooks are removed before a Ractor starts. Since 3.3, such a child sometimes
    # hangs even without an agent: locks that other threads held stay locked.
    codes << "exit!(Ractor.new { 7 }.take)" if %w[3.0 3.1 3.2].include?(RUBY_VERSION[/\d+\.\d+/])
    codes.each do |code|
      # These threads wait for the GVL during the fork. None of them exists in the child.
      waiting = "4.times { Thread.new { loop { sleep 0 } } }\n"
      waiting = "" if code.include?("Ractor")
      target = target(waiting + behind_rubys_back("#{code}; exit!(7)"))
      client = connect(target)
      client.arm(mode: "ring", gc: true)
      assert_equal "status 7\n", said(target), code
      assert File.socket?(target.path), code
      assert_equal 1, client.call("status")["state"], code
      target.close
    end
  end

  # STEP forks with a system call, calls `leaf` once, and lets the child run this code.
  def behind_rubys_back(code)
    fork = RbConfig::CONFIG["host_cpu"] == "x86_64" ? [57] : [220, 17, 0, 0, 0, 0] # fork; clone
    <<~RUBY
      $VERBOSE = nil # syscall warns
      def leaf; end
      STEP = -> {
        leaf
        pid = syscall(#{fork.join(", ")})
        if pid == 0
          #{code}
        end
        puts "status \#{Process.wait2(pid)[1].exitstatus.inspect}"
      }
    RUBY
  end

  # Return the target's report during a step.
  def said(target)
    target.begin_step
    target.io.gets.tap { target.end_step }
  end

  def test_exec_is_made_again
    target = target("STEP = -> { exec(#{RbConfig.ruby.dump}, '-e', '$stdout.sync = true; puts Tracepoint::Agent.path; gets') }",
                    env: { "RUBYOPT" => "-I#{AgentTarget::LIB} -rtracepoint/agent" })
    target.begin_step
    assert_equal target.path, target.io.gets.chomp
    assert_equal target.pid, connect(target).peer_pid
  end

  # The memory stays readable. The new program has no connection to it.
  def test_exec_ends_what_was_armed
    code = "$stdout.sync = true; puts Tracepoint::Agent.path; gets"
    target = target("def leaf; end\nSTEP = -> { leaf; exec(#{RbConfig.ruby.dump}, '-e', '#{code}') }",
                    env: { "RUBYOPT" => "-I#{AgentTarget::LIB} -rtracepoint/agent" })
    client = connect(target)
    memory = client.arm(mode: "table")
    target.begin_step
    assert_raises(EOFError, Errno::ECONNRESET) { client.answer }
    assert_equal target.path, target.io.gets.chomp
    assert_operator memory.methods_seen, :>=, 2
    client = connect(target)
    assert_nil client.hello["armed_by"]
    assert_equal "[]", client.call("eval", code: 'File.readlines("/proc/self/maps").grep(/memfd:rbtrace/)')["value"]
  end

  def test_eight_connections
    target = target()
    clients = Array.new(8) { connect(target) }
    assert_without_place(connect(target))
    clients.each { |client| assert_equal 1, client.call("eval", code: "1")["value"].to_i }
    clients.pop.close
    assert(eventually { again(target) })
  end

  def assert_without_place(client)
    error = assert_raises(AgentClient::Refused) { client.call("eval", code: "1") }
    assert_equal ["busy", "8 connections are open"], [error.code, error.reply["message"]]
    assert_raises(EOFError) { client.read_frame }
  end

  # Clients that have ended keep their places while their threads wait for another arming.
  def test_a_stop_where_all_places_are_taken
    target = target(<<~RUBY)
      BEGUN = Queue.new
      Tracepoint::Agent::Arming.prepend(Module.new { def call; BEGUN << 1; sleep; end })
      STEP = -> { BEGUN.pop }
    RUBY
    clients = Array.new(8) { connect(target) }
    clients.each { |client| client.send_request("arm", mode: "ring") }
    target.step
    clients.each(&:close)
    assert_without_place(connect(target))
    assert_equal({}, connect(target).call("stop"))
    eventually { !File.exist?(target.path) }
  end

  # Connections without a proof take no places from those with a proof.
  def test_connections_without_a_proof
    target = target()
    proven = Array.new(7) { connect(target) }
    silent = Array.new(20) { connect(target, greet: false) }
    connect(target)
    silent.first(12).each { |client| assert_nil client.socket.read(1) }
    proven.each { |client| assert_equal "1", client.call("eval", code: "1")["value"] }
    assert_without_place(connect(target))
  end

  # Connections are counted when admitted, and again when they have proved.
  def test_no_ninth_proof
    target = target()
    greeters = Array.new(2) { connect(target, greet: false) }
    Array.new(7) { connect(target) }
    assert_equal "eval", greeters.first.greet_agent(true)["level"]
    assert_equal "1", greeters.first.call("eval", code: "1")["value"]
    assert_equal "eval", greeters.last.greet_agent(true)["level"]
    assert_without_place(greeters.last)
  end

  # As in load.rb: no thread of the agent needs the GVL then.
  def test_who_loads_it_serves_who_comes_at_once
    target = target(<<~RUBY)
      Tracepoint::Agent.stop
      Tracepoint::Agent::Server.prepend(Module.new do
        private

        def await_connection
          interruptibly { sleep }
        end
      end)
      Tracepoint::Agent.start
      STEP = -> { Thread.new { Tracepoint::Agent.welcome }.join }
    RUBY
    target.step
    client = connect(target, greet: false)
    client.send_request("hello", magic: "rbtrace-agent", versions: [1])
    target.begin_step
    address = client.answer["address"]
    answer = client.answer_to(File.binread("/proc/#{target.pid}/mem", 4096, address))
    assert_equal "eval", client.call("prove", answer: answer)["level"]
    client.close
    target.end_step
    target.step
  end

  # A new connection takes the waiting thread, and another thread then waits.
  def test_one_thread_waits
    target = target("STEP = -> { $stdout.puts(Thread.list.size - 1) }")
    20.times { connect(target).close }
    silent = connect(target, greet: false)
    connect(target).close
    assert(eventually { waiting_threads(target) == 2 })
    silent.close
    assert(eventually { waiting_threads(target) == 1 })
  end

  def now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end

  def waiting_threads(target)
    target.begin_step
    Integer(target.io.gets).tap { target.end_step }
  end

  # The limit covers the whole greeting, not each frame, even if a frame has begun.
  def test_a_greeting_has_five_seconds
    target = target()
    began = now
    client = connect(target, greet: false)
    early = IO.select([client.socket], nil, nil, [began + 3 - now, 0].max)
    assert_operator now - began, :>=, 5 if early
    client.call("hello", magic: "rbtrace-agent", versions: [1])
    client.socket.write("x")
    assert IO.select([client.socket], nil, nil, 5), "it waits on"
    error = assert_raises(AgentClient::Refused) { client.answer }
    assert_equal ["protocol", "frame not complete in time"], error.reply.values_at("code", "message")
  end

  # The thread that accepts a connection then answers it, but only the command `stop`.
  def test_no_more_threads
    target = target(<<~RUBY)
      $none = false
      Thread.singleton_class.prepend(Module.new do
        def new(*)
          raise ThreadError, "can't create Thread" if $none
          super
        end
      end)
      STEP = -> { $none = !$none }
    RUBY
    target.step
    client = connect(target)
    error = assert_raises(AgentClient::Refused) { client.call("threads") }
    expected = ["system", "can't create Thread", Errno::EAGAIN::Errno]
    assert_equal expected, error.reply.values_at("code", "message", "errno")
    assert_raises(EOFError) { client.read_frame }
    target.step
    client = connect(target, greet: false)
    client.send_request("hello", magic: "rbtrace-agent", versions: [1])
    assert IO.select([client.socket], nil, nil, 60), "nobody answers"
    assert_equal 1, client.answer["version"]
    client.socket.close
    target.step
    assert_empty connect(target).call("stop")
  end

  # A connection's thread may be killed at any point.
  def test_arming_that_is_cut_off
    target = target(<<~RUBY)
      $cut = false
      Tracepoint::Agent::Native.singleton_class.prepend(Module.new do
        def arm(*)
          super.tap { Thread.current.kill if $cut }
        end
      end)
      STEP = -> { $cut = !$cut }
    RUBY
    target.step
    client = connect(target)
    client.send_request("arm", mode: "ring")
    assert_raises(EOFError, Errno::ECONNRESET) { client.answer }
    target.step
    assert_equal 1, connect(target).arm(mode: "ring").state
  end

  def test_stop_in_a_signals_handler
    target = target(<<~RUBY)
      HANDLED = Queue.new
      trap("USR1") do
        HANDLED << Tracepoint::Agent.stop
      rescue ThreadError => e
        HANDLED << e
      end
      STEP = -> {
        Process.kill(:USR1, $$)
        p HANDLED.pop
        Thread.pass while Tracepoint::Agent.armed_by
      }
    RUBY
    memory = connect(target).arm(mode: "ring")
    target.begin_step
    assert_equal "nil\n", target.io.gets
    target.end_step
    assert_equal 2, memory.state
  end

  def again(target)
    connect(target)
  rescue AgentClient::Refused, EOFError, SystemCallError
    nil
  end

  def test_stop
    target = target("STEP = -> { Tracepoint::Agent.stop; p Tracepoint::Agent.path, Thread.list.size }")
    client = connect(target)
    target.begin_step
    assert_equal %w[nil], [target.io.gets.chomp]
    target.io.gets
    target.end_step
    refute File.exist?(target.path)
    assert_raises(EOFError, Errno::ECONNRESET, Errno::EPIPE) { client.call("clock") }
    target = target()
    client = connect(target)
    client.send_request("stop")
    eventually { !File.exist?(target.path) }
    target.step
  end

  # This includes a client admitted at the same moment.
  def test_stop_ends_every_connection
    target = target("STEP = -> { Tracepoint::Agent.stop; Tracepoint::Agent.start }")
    30.times do
      clients = Array.new(6) { UNIXSocket.new(target.path) }
      target.step
      clients.each do |client|
        assert IO.select([client], nil, nil, 60), "a connection was left open"
        assert_raises(EOFError, Errno::ECONNRESET) { client.readpartial(1) }
      end
    ensure
      clients&.each(&:close)
    end
  end

  def test_exit_tells_who_armed
    target = target("def leaf; end\nSTEP = -> { leaf; exit }")
    client = connect(target)
    memory = client.arm(mode: "table")
    target.begin_step
    event = client.last_event
    assert_equal "exit", event["event"]
    leaf = event["methods"].find { |entry| entry["name"] == "leaf" }
    assert_equal 1, memory.method_record(leaf["index"])[:calls]
    assert_equal [2, 2], [memory.state, event["status"]["state"]]
  end

  # Whichever comes second waits, or finds nothing to do.
  def test_disarmed_as_the_process_ends
    target = target(<<~RUBY)
      Tracepoint::Agent::Native.singleton_class.prepend(Module.new do
        def counters
          if Thread.current == Thread.main
            other = Thread.new { Tracepoint::Agent.disarm(Tracepoint::Agent.armed_by) }
            Thread.pass while other.status == "run"
          end
          super
        end
      end)
      STEP = -> { exit }
    RUBY
    client = connect(target)
    memory = client.arm(mode: "table")
    target.begin_step
    assert_includes [nil, "exit"], client.last_event&.fetch("event")
    assert_equal ["", 2], [target.close, memory.state]
  end

  # Nothing remains: no hook, no file, and no thread except the waiting one.
  def test_what_is_armed_goes_with_the_tracer
    target = target("def leaf; end\nSTEP = -> { leaf }")
    watcher = connect(target)
    pid = arming_tracer(target)
    assert_equal pid, armed_by(target)
    error = assert_raises(AgentClient::Refused) { watcher.arm(mode: "ring") }
    assert_equal ["busy", pid], [error.code, error.reply["pid"]]
    Process.kill(:KILL, pid)
    Process.wait(pid)
    eventually { armed_by(target).nil? }
    assert_equal "[]", watcher.call("eval", code: 'File.readlines("/proc/self/maps").grep(/memfd:rbtrace/)')["value"]
    assert_equal "[]", watcher.call("eval", code: 'Dir["/proc/self/fd/*"].map { |f| File.readlink(f) rescue "" }.grep(/memfd/)')["value"]
    assert_equal 1, watcher.arm(mode: "ring").state
  end

  # The dead tracer's thread has not noticed yet, because others are busy.
  def test_what_a_dead_tracer_armed_is_in_nobodys_way
    target = target("2.times { Thread.new { loop {} } }")
    watcher = connect(target)
    5.times do
      pid = arming_tracer(target)
      Process.kill(:KILL, pid)
      Process.wait(pid)
      assert_equal 1, watcher.arm(mode: "ring").state
      watcher.call("disarm")
    end
  end

  # Return the PID of a process that has armed the target and waits.
  def arming_tracer(target)
    reader, writer = IO.pipe
    pid = fork do
      AgentClient.new(target.path).arm(mode: "ring", gc: true)
      writer.puts "armed"
      sleep
    end
    assert_equal "armed\n", reader.gets
    pid
  end

  def armed_by(target)
    client = target.connect
    client.hello["armed_by"]
  ensure
    client&.close
  end

  def test_memory_is_sealed
    memory = connect(target()).arm(mode: "ring", ring_records: 256)
    seals = [memory.data, memory.control].map { |io| io.fcntl(1034) & ~0x20 } # some kernels add F_SEAL_EXEC
    assert_equal [0x1 | 0x2 | 0x4 | 0x10, 0x1 | 0x2 | 0x4], seals if memory.reply["sealed"]
    file = "/proc/self/fd/#{memory.data.fileno}"
    assert_raises(Errno::EPERM) { File.truncate(file, 0) }
    assert_raises(Errno::EPERM) { memory.data.pwrite("x", 0) } if memory.reply["sealed"]
    assert_equal memory.reply["size"], File.size(file)
  end

  # A reader that lies about what it has read affects only its own data.
  def test_a_lying_reader
    target = target("def leaf; end\nSTEP = -> { i = 0; leaf while (i += 1) <= 2000 }")
    client = connect(target)
    memory = client.arm(mode: "ring", ring_records: 256)
    [0, 1, 255, 1 << 40, (1 << 64) - 1, 300, 5].each do |tail|
      (1..8).each { |slot| memory.control.pwrite([tail].pack("Q<"), 64 * slot) }
      target.step
    end
    assert_equal 1, client.call("status")["state"]
  end
end
