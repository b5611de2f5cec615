# frozen_string_literal: true

$LOAD_PATH.unshift File.expand_path("../lib", __dir__)
require "minitest/autorun"
require "fileutils"
require "io/wait"
require "open3"
require "rbconfig"
require "tmpdir"
require "tracepoint"
require_relative "support/tapped_site"

# nohup and a shell's & ignore these signals, and all programs that the tests start would
# inherit that. Programs do not inherit an empty handler, and with it a hangup still does
# not end the tests themselves.
trap("INT", "DEFAULT")
%w[HUP QUIT].each { |name| trap(name) {} if trap(name, "DEFAULT") == "IGNORE" }

# For `timeout --signal=USR1`: print where tests and their children hang.
trap("USR1") do
  warn(*Thread.list.flat_map { |thread| [thread.inspect, *thread.backtrace&.map { |line| "  #{line}" }] })
  Dir["/proc/[0-9]*/task/*"].each do |task|
    next unless File.read("#{task}/status")[/^PPid:\s+(\d+)/, 1].to_i == $$

    warn "#{task}: #{%w[comm wchan syscall].map { |name| File.read("#{task}/#{name}").strip }.join(" ")}"
  rescue SystemCallError
    next # it has ended
  end
  exit!(1)
end

module TestHelper
  ROOT = File.expand_path("../..", __dir__)
  LIB = File.join(ROOT, "ruby/lib")

  @names = 0
  class << self
    # Probes exist forever, so each test needs unique names.
    def unique(prefix = "probe")
      @names += 1
      "#{prefix}_#{@names}"
    end
  end

  def unique(prefix = "probe")
    TestHelper.unique(prefix)
  end

  def needs_native
    skip "the extension is not built for this Ruby" unless Tracepoint.supported?
  end

  def needs_taps
    needs_native
    skip TappedSite.why_not if TappedSite.why_not
  end

  def registry
    Tracepoint.const_get(:Registry)
  rescue NameError
    Tracepoint.module_eval("Registry", __FILE__, __LINE__)
  end

  # Trace an entry's sites during the block, each with a tap that records its operands. The
  # garbage collector is off, because a String may be read late.
  def tapping(entry)
    needs_taps
    collecting = !GC.disable
    taps = registry.sites(entry).map { |address| TappedSite.new(address) }
    yield(*taps)
  ensure
    taps&.each(&:close)
    GC.enable if collecting
  end

  # Return the operands of the only event that the block fires.
  def operands_of(entry)
    tapping(entry) do |tap|
      assert_equal true, yield, "it did not fire"
      assert_equal 1, tap.hits
      return entry.operands.values.each_with_index.map { |type, i| tap.value(i, type) }
    end
  end

  def strictly
    Tracepoint.strict = true
    yield
  ensure
    Tracepoint.strict = false
  end

  # Return the growth of a counter.
  def counting(counter)
    before = Tracepoint.stats.fetch(counter)
    yield
    Tracepoint.stats.fetch(counter) - before
  end

  def assert_no_objects(&block)
    assert_equal 0, objects_of(&block)
  end

  # Return the number of objects that 1,000 runs of the block allocate.
  #
  # Threads of earlier tests may allocate as well, so the lowest of three counts is right.
  def objects_of(&block)
    Array.new(3) { objects_of_one_round(&block) }.min
  end

  def objects_of_one_round
    yield # fills inline caches
    disabled = GC.disable
    before = GC.stat(:total_allocated_objects)
    after = GC.stat(:total_allocated_objects)
    own = after - before
    before = GC.stat(:total_allocated_objects)
    i = 0
    while i < 1000
      yield
      i += 1
    end
    after = GC.stat(:total_allocated_objects)
    after - before - own
  ensure
    GC.enable unless disabled
  end

  # Run a script in a separate Ruby process, and return its output.
  def ruby(script, env: {}, options: [], verbose: true)
    output, status = Open3.capture2e(env, RbConfig.ruby, *("-w" if verbose), "-I#{LIB}", *options, "-e", script)
    assert status.success?, output
    output
  end
end

module Minitest
  class Test
    include TestHelper
  end
end
