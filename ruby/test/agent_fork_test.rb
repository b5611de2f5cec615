# frozen_string_literal: true

require "test_helper"
require "support/agent_target"

# What a child has of its parent's agent: nothing that costs it anything, and a
# fork that does what forks do.
class AgentForkTest < Minitest::Test
  include TestHelper
  include AgentHelper

  # Of a child: what it says, after the program above it.
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
      # Its warning would be taken for what it says.
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
end
