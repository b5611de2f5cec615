# frozen_string_literal: true

require "test_helper"
require "support/agent_target"

# Forks: a child must not pay for its parent's agent, and the program's fork must behave as
# usual.
class AgentForkTest < Minitest::Test
  include TestHelper
  include AgentHelper

  # Return the output of a child that runs the program above.
  def child_says(setup, code)
    target = target(<<~RUBY)
      #{setup}
      STEP = -> {
        begin
          parent = $$
          Process.wait(fork { puts "child: \#{#{code}}" })
        rescue Exception => e
          puts "\#{parent == $$ ? "parent" : "child"}: \#{e.class} \#{e.message}"
        end
      }
    RUBY
    yield target if block_given?
    target.begin_step
    said = target.io.gets
    target.end_step
    said
  end

  def test_a_child_that_can_make_no_thread
    said = child_says(<<~RUBY, "[Tracepoint::Agent.path, Dir.children(File.dirname(HERE)).grep(/\\A\#{$$}-/)]")
      HERE = Tracepoint::Agent.path
      PARENT = $$
      Thread.singleton_class.prepend(Module.new do
        def new(*)
          raise ThreadError, "can't create Thread" unless $$ == PARENT
          super
        end
      end)
      # The warning would be mistaken for the program's output.
      def warn(*) end
    RUBY
    assert_equal "child: [nil, []]\n", said
  end

  def test_a_child_that_can_say_nothing_of_it
    said = child_says(<<~RUBY, "Tracepoint::Agent.path.inspect")
      ENV["TRACEPOINT_AGENT_DIR"] = "/dev/null/nowhere"
      require "stringio"
      $stderr = StringIO.new.tap(&:close_write)
    RUBY
    assert_equal "child: nil\n", said
  end

  # Under Ruby 3.1, the main thread of the child has the parent's native ID.
  def test_the_kernels_id_of_the_thread_that_forked
    skip "Ruby #{RUBY_VERSION} has no such ids" unless Thread.method_defined?(:native_thread_id)
    in_thread = "Thread.new { fork { %s } }.join"
    ["fork { %s }", in_thread, "fork { #{in_thread}; Process.waitall }"].each do |how|
      target = target("STEP = -> { #{format(how, "puts Tracepoint::Agent.path; $stdin.gets")}; Process.waitall }")
      target.begin_step
      child = connect(target, path: target.io.gets.chomp)
      threads = child.call("threads")["threads"].select { |thread| thread["main"] }
      assert_equal [child.peer_pid], threads.map { |thread| thread["native_id"] }, how
    end
  end

  # The thread that would undo it does not exist in the child.
  def test_what_runs_in_the_parent_is_undone_in_a_child
    state = "[$tracer.enabled?, KEPT.size, $stdout.equal?(STDOUT), $stderr.equal?(STDERR)]"
    said = child_says("KEPT = []", state) do |target|
      client = connect(target)
      client.send_request("eval", code: <<~'RUBY', limit_ms: 600_000)
        $tracer = TracePoint.new(:raise) { |point| KEPT << point.raised_exception }
        Tracepoint::Agent.undoing(-> { $tracer.disable; KEPT.clear }) do
          $tracer.enable
          raise "x" rescue nil
          $stdout.write("ready")
          sleep
        end
      RUBY
      assert_equal "ready", client.read_frame.last
      # The parent's state is unchanged.
      others = connect(target).call("eval", code: "[$tracer.enabled?, KEPT.size]")
      assert_equal "[true, 1]", others["value"]
    end
    assert_equal "child: [false, 0, true, true]\n", said
  end
end
