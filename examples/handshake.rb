# frozen_string_literal: true

require "optparse"

# Shared by the examples: options, and a protocol by which a tracer tells an
# example when to begin and when to exit.
#
#   --count N   run N rounds without pauses between them, and exit
#   --wait      wait for a line on stdin after "ready", and after "done"
class Handshake
  # @return [Integer, nil] nil: run until killed
  attr_reader :count

  def initialize(argv = ARGV)
    @count = nil
    @wait = false
    parser = OptionParser.new do |options|
      options.on("--count N", Integer, "do N rounds, then end") { |n| @count = n }
      options.on("--wait", "wait for a line on stdin before and after") { @wait = true }
      yield options if block_given?
    end
    parser.parse!(argv)
    trap(:INT) { exit }
    trap(:TERM) { exit }
  end

  def ready
    say "pid #{Process.pid}", "ready"
  end

  def done(*lines)
    say(*lines, "done")
  end

  # Yield numbers from 0 on: `count` of them; or endlessly, with a pause after each.
  def rounds(pause: 0.1)
    return count.times { |i| yield i } if count

    0.step do |i|
      yield i
      sleep pause
    end
  end

  private

  def say(*lines)
    puts(*lines)
    $stdout.flush
    $stdin.gets if @wait
  end
end
