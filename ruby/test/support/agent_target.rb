# frozen_string_literal: true

require_relative "agent_client"

# A Ruby process with the agent, which performs one step per command.
class AgentTarget
  LIB = File.expand_path("../../lib", __dir__)
  LOOP = <<~RUBY
    $stdout.sync = true
    puts "ready \#{Tracepoint::Agent.path}"
    while gets
      STEP.call
      puts "done"
    end
  RUBY

  attr_reader :io, :path

  # Copy the gem for another user without access to the checkout (/root is 0700).
  def self.public_lib
    @public_lib ||= begin
      folder = Dir.mktmpdir("tracepoint-", "/tmp")
      Minitest.after_run { FileUtils.rm_rf(folder) }
      File.chmod(0o755, folder)
      FileUtils.mkdir(["#{folder}/ruby", "#{folder}/ext"])
      FileUtils.cp_r(LIB, "#{folder}/ruby")
      FileUtils.cp_r(File.expand_path("../../../ext/agent", __dir__), "#{folder}/ext")
      "#{folder}/ruby/lib"
    end
  end

  # program: code that sets STEP to a Proc
  def initialize(program = "STEP = -> {}", env: {}, options: [], user: nil)
    source = "#{user ? "Process::UID.change_privilege(#{user});" : ""} require 'tracepoint/agent'\n#{program}\n#{LOOP}"
    lib = user ? AgentTarget.public_lib : LIB
    env = { "HOME" => "/", **env } if user # RubyGems warns of a home that it may not read
    @io = IO.popen([env, RbConfig.ruby, "-w", "-I#{lib}", *options, "-e", source, { err: %i[child out], pgroup: true }], "r+")
    line = @io.gets.to_s
    fail_with("the target did not start: #{line}") unless line.start_with?("ready ")
    @path = line.split[1]
  end

  def pid
    @io.pid
  end

  def step
    begin_step
    end_step
  end

  def begin_step
    @io.puts
  end

  def end_step
    line = @io.gets
    fail_with("the target said #{line.inspect}") unless line == "done\n"
  end

  # A child also holds the output, and may never end.
  def fail_with(message)
    Process.kill(:KILL, -pid)
    raise "#{message}#{@io.read}"
  end

  def connect(path: @path, **options)
    AgentClient.new(path, **options)
  end

  # End the target, and return its remaining output.
  def close
    return if @io.closed?

    @io.close_write
    @io.read
  ensure
    @io.close unless @io.closed?
  end

  def kill
    Process.kill(:KILL, pid)
    @io.close
  rescue Errno::ESRCH
    nil
  end
end

# Helpers of several tests of the agent.
module AgentHelper
  # Offsets for the Rubies of the tests. The tracer gets them from its layouts.
  OFFSETS = { cfp_ep: 32, me_owner: 32, me_def: 16, def_original_id: 32, ment_imemo: 6, svar_imemo: 2, local_flag: 2,
              ec_thread: RUBY_VERSION < "3.1" ? 56 : 48 }.freeze

  def setup
    super
    hook = Dir[File.join(AgentTarget::LIB, "tracepoint/native/agent-*/agent_hook.so")]
    skip "the agent's hook is not built" if hook.empty?
    @open = []
  end

  def teardown
    @open&.each { |thing| thing.close unless thing.is_a?(AgentClient) && thing.socket.closed? }
    super
  end

  def target(program = "STEP = -> {}", **options)
    AgentTarget.new(program, **options).tap { |target| @open << target }
  end

  def connect(target, **options)
    target.connect(**options).tap { |client| @open.unshift(client) }
  end

  def eventually(seconds = 60)
    deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + seconds
    until (found = yield)
      flunk "not within #{seconds} s" if Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline
      sleep 0.01
    end
    found
  end

  # Map numbers of methods to names, such as `String#gsub` and `Dir.pwd`.
  def names_of(client)
    methods = client.call("names")["methods"].reject { |entry| entry["path"].to_s.start_with?("<internal:") }
    methods.to_h do |entry|
      [entry["index"], "#{entry["owner"]}#{entry["singleton"] ? "." : "#"}#{entry["name"]}"]
    end
  end

  # Return the calls of one step: a string per stack, one indented line per call. Methods
  # that some versions implement in Ruby (Integer#times) are left out.
  def trees(program, **arming)
    target = target(program)
    seen(connect(target), target, mode: "ring", **arming)
  end

  def seen(client, target, **arming)
    memory = client.arm(**arming)
    target.step
    names = names_of(client)
    # A stream goes to another stack when its own stack has ended.
    stacks = memory.read_all.flat_map { |records| records.slice_before { |record| record.kind == :stack }.to_a }
    found = stacks.map { |records| tree(records, names) }
    @status = client.call("disarm")
    found.reject(&:empty?)
  end

  def tree(records, names)
    open = []
    records.each_with_object(+"") do |record, text|
      case record.kind
      when :entry, :c_entry
        assert_equal open.size, record.depth
        text << "  " * open.count { |method| names[method] } << names[record.method] << "\n" if names[record.method]
        open.push(record.method)
      when :return, :c_return
        next if record.flags == 1

        assert_equal open.size - 1, record.depth
        assert_equal open.pop, record.method, text
      end
    end
  end
end
