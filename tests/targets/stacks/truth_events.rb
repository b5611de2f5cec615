# frozen_string_literal: true

# Fires truth:here at most COUNT times, each time from another stack. It draws a plan of
# frames (SEED), writes its own stack to FILE as one line, and fires with the line's number
# (from 1 on). A stack is its frames, newest first, separated by "\x1e". A frame is path,
# line, and label, separated by "\t". The collector is off: it could free an eval's code
# before its name is read, and the frame would be (unresolved).

require "tracepoint"
require_relative "truth_kinds"

HERE = Tracepoint.define(:here, { number: Integer }, provider: :truth)

module Go
  class << self
    attr_accessor :file, :number

    # Both calls are on one line, so that the frame has the same line in both.
    def last(_plan)
      tell(caller_locations(0)); HERE.fire(number)
    end

    def tell(stack)
      frames = stack.map { |at| "#{at.path}\t#{at.lineno}\t#{at.label}" }
      file.puts(frames.join("\x1e"))
      self.number += 1
    end
  end
end

count, seed = ARGV.first(2).map(&:to_i)
Go.number = 0
trap(:USR2) { KINDS.handle }
random = Random.new(seed)
inner = ALL - FIRST
$stdout.sync = true
puts "ready #{Process.pid}"
$stdin.gets
GC.disable
File.open(ARGV[2], "w") do |file|
  Go.file = file
  count.times do
    plan = Go.draw(random, inner, 10)
    plan = [:in_trap, *(plan - [:in_mutex])].freeze if random.rand(20).zero?
    Go.on(plan, 0)
  end
end
puts "done"
$stdin.gets
