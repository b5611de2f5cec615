# frozen_string_literal: true

require "optparse"

# What the examples share: options, and a way for whoever traces them to say
# when to begin and when to end.
#
#   --count N   do N rounds and end, without a pause between them
#   --wait      wait for a line on stdin after "ready", and after "done"
class Handshake
  # @return [Integer, nil] nil: go on until killed
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

  # Numbers from 0 on: `count` of them, or for ever, with a pause after each.
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
