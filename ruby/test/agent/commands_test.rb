# frozen_string_literal: true

require "test_helper"
require "support/agent_target"

# Commands that query the process itself.
class AgentCommandsTest < Minitest::Test
  include TestHelper
  include AgentHelper

  def test_values_and_output
    client = connect(target)
    reply = client.call("eval", code: "$stdout.puts 'out'; $stderr.puts 'err'; [1, self]")
    assert_equal ["[1, main]", "Array"], reply.values_at("value", "class")
    assert_equal({ 1 => "out\n", 2 => "err\n" }, client.channels)
    error = assert_raises(AgentClient::Refused) { client.call("eval", code: "exit!(3) if false; exit") }
    assert_equal %w[raised SystemExit], [error.code, error.reply["class"]]
    error = assert_raises(AgentClient::Refused) { client.call("eval", code: "sleep", limit_ms: 50) }
    assert_equal "time", error.code
  end

  # A copy whose parent ended before the copy could tie its life to it.
  def test_a_copy_that_comes_too_late
    program = <<~RUBY
      [Process.pid, Process.pid + 1].each do |parent|
        pid = Process.fork do
          $VERBOSE = nil
          Tracepoint::Agent::Copy.end_with(parent)
          exit!(7)
        end
        p Process.wait2(pid)[1].exitstatus
      end
    RUBY
    assert_equal "7\n1\n", ruby("require 'tracepoint/agent'; #{program}")
  end

  def test_an_answer_that_is_too_long
    client = connect(target)
    assert_equal 8_000_002, client.call("eval", code: "'x' * 8_000_000")["value"].size
    error = assert_raises(AgentClient::Refused) { client.call("eval", code: "'x' * 9_000_000") }
    assert_match(/\Asystem: the answer has 90000\d\d bytes, more than 8388608\z/, error.message)
    assert_equal "2", client.call("eval", code: "1 + 1")["value"]
  end

  def test_output_that_stays_where_it_is
    client = connect(target)
    reply = client.call("eval", code: <<~RUBY, redirect: false)
      own = %i[rbtrace_stdout rbtrace_stderr].map { |name| Thread.current.thread_variable_get(name) }
      own.each_with_index { |io, i| io.write(i) }
      [$stdout.equal?(STDOUT), $stderr.equal?(STDERR)]
    RUBY
    assert_equal ["[true, true]", { 1 => "0", 2 => "1" }], [reply["value"], client.channels]
  end

  # The program changes its output while the output is captured.
  def test_output_that_the_program_reopens_meanwhile
    Dir.mktmpdir do |dir|
      target = target(<<~RUBY)
        STEP = -> {
          found = [$stdout == STDOUT, $stdout.is_a?(IO), $stdout.class, $stdout.fileno]
          saved = $stdout.dup
          $stdout.reopen("#{dir}/else", "w")
          puts "elsewhere"
          $stdout.reopen(saved)
          saved.close
          p found
          IO.select(nil, [$stdout])
          STDOUT.reopen($stdout)
        }
      RUBY
      client = connect(target)
      client.send_request("eval", code: "puts 'ready'; sleep", limit_ms: 600_000)
      assert_equal "ready\n", client.read_frame.last
      target.begin_step
      assert_equal "[true, true, IO, 1]\n", target.io.gets
      target.end_step
      assert_equal "elsewhere\n", File.read("#{dir}/else")
      client.cancel
      assert_equal "cancelled", assert_raises(AgentClient::Refused) { client.answer }.code
      assert_equal "true", client.call("eval", code: "$stdout.equal?(STDOUT)", redirect: false)["value"]
    end
  end

  # A thread is killed while it waits for its turn.
  def test_output_of_one_after_one_that_was_killed
    client = connect(target)
    client.call("eval", code: <<~RUBY)
      redirect = Tracepoint::Agent::Redirect
      redirect::LOCK.synchronize do
        waits = Thread.new { redirect.around {} }
        Thread.pass until waits.stop?
        waits.kill
      end
    RUBY
    client.call("eval", code: "puts 'taken'")
    assert_equal({ 1 => "taken\n" }, client.channels)
    assert_equal "true", client.call("eval", code: "$stdout.equal?(STDOUT)", redirect: false)["value"]
  end

  # The error does not include the writing thread's frames, and error_highlight does not quote them.
  def test_an_error_below_a_redirected_output
    client = connect(target)
    error = assert_raises(AgentClient::Refused) { client.call("eval", code: "$stdout.no_such") }
    assert_match(/\Aundefined method .no_such' for .*\z/, error.reply["message"])
    assert_equal %w[1], lines_of(error)
    code = "object = Object.new\ndef object.to_s() raise('no'); end\n$stdout.puts(object)"
    assert_equal %w[2 3], lines_of(assert_raises(AgentClient::Refused) { client.call("eval", code: code) })
    kept = "raise(KEPT ||= begin; $stdout.no_such; rescue NameError => e; e.freeze; end)"
    2.times { assert_equal %w[1], lines_of(assert_raises(AgentClient::Refused) { client.call("eval", code: kept) }) }
  end

  def test_an_error_whose_message_ends_the_program
    client = connect(target)
    code = "raise Class.new(StandardError) { def message() exit; end }"
    error = assert_raises(AgentClient::Refused) { client.call("eval", code: code) }
    assert_equal ["raised", "(its message raised SystemExit)"], [error.code, error.reply["message"]]
    assert_equal "3", client.call("eval", code: "1 + 2")["value"]
  end

  def lines_of(error)
    error.reply["backtrace"].map { |frame| frame[/\A\(rbtrace\):(\d+):in /, 1] }
  end

  # Threads that the code starts belong to the program, and keep running. This includes a
  # thread that is just ending, which has no group any more.
  def test_its_own_threads_are_told_from_the_programs
    target = target()
    client = connect(target)
    threads = Array.new(300) do
      2.times { UNIXSocket.new(target.path).close }
      client.call("threads")["threads"]
    end
    assert_equal [[true, false], [false, true]], threads.flatten.map { |thread| thread.values_at("main", "agent") }.uniq
  end

  def test_threads_that_evaluated_code_starts
    target = target("STEP = -> { p $worker.alive? }")
    client = connect(target)
    client.call("eval", code: "$worker = Thread.new { sleep }")
    own = client.call("eval", code: "[Thread.current, $worker, Thread.main].map { |thread| Tracepoint::Agent.own?(thread) }")
    assert_equal "[true, false, false]", own["value"]
    client.call("stop")
    eventually { !File.exist?(target.path) }
    assert_raises(EOFError, SystemCallError) { client.read_frame }
    target.begin_step
    assert_equal "true\n", target.io.gets
    target.end_step
  end

  # Kernels before 4.14 have no smaps_rollup, and a process that is not dumpable cannot read
  # it. Other files count pages, whose size Ruby only knows through a gem.
  def test_memory_without_a_rollup
    target = target(<<~RUBY)
      File.singleton_class.prepend(Module.new do
        def read(path, *)
          path.end_with?("/smaps_rollup", "/statm") ? raise(Errno::EACCES, path) : super
        end
      end)
      STEP = -> {}
    RUBY
    memory = connect(target).call("memory")
    resident = File.read("/proc/#{target.pid}/status")[/^VmRSS:\s+(\d+) kB/, 1].to_i * 1024
    assert_in_delta resident, memory["rss"], resident / 2.0
    assert_equal [nil, nil], memory.values_at("pss", "swap")
  end

  # The child writes faster than the client reads.
  def test_a_heap_dump_waits_for_its_reader
    client = connect(target("STEP = -> {}; KEPT = Array.new(50_000) { |i| 'text %06d' % i }"))
    client.send_request("heapdump")
    bytes = +""
    until (frame = client.read_frame).first == AgentClient::REPLY
      bytes << frame.last
    end
    assert_equal bytes.bytesize, client.decode(frame.last)["bytes"]
    assert_equal 50_000, bytes.scan(/"text \d{6}"/).uniq.size
    bytes.each_line { |line| assert line.start_with?("{"), line }
  end

  # The time limit also ends code whose output is not read.
  def test_a_limit_of_time_for_who_does_not_read
    target = target()
    client = connect(target)
    client.send_request("eval", code: "$writer = Thread.current; loop { puts 'x' * 1000 }", limit_ms: 300)
    other = connect(target)
    eventually { other.call("eval", code: "$writer&.status.inspect")["value"] == '"false"' }
    assert_equal "time", assert_raises(AgentClient::Refused) { client.answer }.code
    assert_equal "x" * 1000 + "\n", client.channels[1].byteslice(0, 1001)
    assert_equal "3", client.call("eval", code: "1 + 2")["value"]
  end

  def test_a_dump_for_who_does_not_read
    target = target("STEP = -> {}; KEPT = Array.new(50_000) { |i| 'text %06d' % i }")
    client = connect(target)
    client.send_request("heapdump", limit_ms: 300)
    IO.select([client.socket])
    eventually { children(target.pid).empty? }
    assert_equal "time", assert_raises(AgentClient::Refused) { client.answer }.code
    assert_equal "3", client.call("eval", code: "1 + 2")["value"]
  end

  def children(pid)
    Dir["/proc/[0-9]*/stat"].select do |path|
      File.read(path).rpartition(")").last.split[1].to_i == pid
    rescue SystemCallError
      false
    end
  end

  # A second request during the first ends the connection, even if the first does not end.
  def test_two_requests_at_once
    target = target()
    client = connect(target)
    code = "$over = false; Thread.handle_interrupt(Object => :never) { puts 'ready'; Thread.pass until $over }"
    client.send_request("eval", code: code, limit_ms: 600_000)
    assert_equal "ready\n", client.read_frame.last
    client.send_request("clock")
    type, _, request, payload = client.read_frame
    assert_equal [AgentClient::ERROR, 0, "protocol"], [type, request, client.decode(payload)["code"]]
    assert_raises(EOFError, Errno::ECONNRESET) { client.read_frame }
  ensure
    target&.kill
  end

  def test_a_dump_that_fails_says_why
    target = target("STEP = -> {}\n$VERBOSE = nil\nrequire 'objspace'\ndef ObjectSpace.dump_all(**) raise(IOError, 'the reason'); end")
    error = assert_raises(AgentClient::Refused) { connect(target).call("heapdump") }
    assert_equal ["system", "the dump failed: IOError: the reason"], [error.code, error.reply["message"]]
    target.step
  end

  # Programs that take their children's statuses: by waiting for any, or by ignoring them.
  REAPERS = ["Thread.new { loop { Process.wait(-1) rescue sleep 0.01 } }", "trap('CLD', 'IGNORE')"].freeze
  KEPT = "KEPT = Array.new(50_000) { |i| 'text %06d' % i }"

  def test_a_dump_whose_status_the_program_takes
    REAPERS.each do |reaper|
      client = connect(target("STEP = -> {}; #{KEPT}; #{reaper}"))
      reply = client.call("heapdump")
      assert_equal client.channels[3].bytesize, reply["bytes"]
      assert_equal 50_000, client.channels[3].scan(/"text \d{6}"/).uniq.size
    end
  end

  def test_a_dump_whose_process_is_killed
    ["", *REAPERS].each do |reaper|
      target = target("STEP = -> {}; #{KEPT}; #{reaper}")
      client = connect(target)
      client.send_request("heapdump")
      IO.select([client.socket])
      # It cannot finish without a reader.
      child = children(target.pid).first[/\d+/]
      Process.kill(:KILL, child.to_i)
      eventually { reaper.empty? || !File.exist?("/proc/#{child}") }
      error = assert_raises(AgentClient::Refused) { client.answer }
      assert_match(/\Athe dump failed: its process was ended before it had written everything/, error.reply["message"])
      assert_includes error.reply["message"], "SIGKILL" if reaper.empty?
    end
  end

  def test_a_dump_that_fails_says_why_to_who_takes_its_status
    failing = "$VERBOSE = nil\nrequire 'objspace'\ndef ObjectSpace.dump_all(**) raise(IOError, 'the reason'); end"
    REAPERS.each do |reaper|
      error = assert_raises(AgentClient::Refused) { connect(target("STEP = -> {}\n#{failing}; #{reaper}")).call("heapdump") }
      assert_equal "the dump failed: IOError: the reason", error.reply["message"]
    end
  end
end
