# frozen_string_literal: true

# Fires truth:here, COUNT times at most, each time from another stack: draws a plan of frames
# (SEED), and at its end writes its own stack to FILE, a line each, and fires with the
# line's number, from 1 on. A stack is its frames, the newest first, "\x1e" between them;
# a frame is path, line and label with "\t" between them. The collector is off: code of an
# eval that it frees before its name was read is (unresolved), which is no difference.

require "tracepoint"
require_relative "truth_kinds"

HERE = Tracepoint.define(:here, { number: Integer }, provider: :truth)

module Go
  class << self
    attr_accessor :file, :number

    # On one line, so that the frame's own line is the same for both.
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
