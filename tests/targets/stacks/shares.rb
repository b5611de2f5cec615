# frozen_string_literal: true

# Three methods that burn 50, 30, and 20 % of the CPU by the thread's own CPU clock.
# Their turns of a few milliseconds all differ in length, so that no clock of the kernel,
# such as its time slices, keeps step with them. At "go SECONDS" they burn
# SECONDS of CPU time in all. The answer is JSON: the CPU time that each method has really
# burned, in ns.
#
#   shares.rb              for a sampler from outside
#   shares.rb stackprof    stackprof samples each "go"; its counts are in the answer
require "json"

module Clock
  def self.now
    Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID, :nanosecond)
  end
end

class Shares
  TURN = 10_000_000

  def initialize
    @burned = {"half" => 0, "third" => 0, "fifth" => 0}
  end

  attr_reader :burned

  def half
    spin { |index| index * 3 + 1 }
  end

  def third
    spin { |index| index ^ 5 }
  end

  def fifth
    spin { |index| index - 7 }
  end

  # Work between two readings of the clock. Nearly all of it is in the block.
  def spin
    sum = 0
    index = 0
    while index < 10_000
      sum += yield(index)
      index += 1
    end
    sum
  end

  def burn(name, amount)
    start = Clock.now
    case name
    when "half" then half while Clock.now - start < amount
    when "third" then third while Clock.now - start < amount
    else fifth while Clock.now - start < amount
    end
    @burned[name] += Clock.now - start
  end

  def run(seconds)
    random = Random.new(42)
    left = seconds * 1e9
    while left.positive?
      turn = random.rand(TURN / 5..TURN * 9 / 5)
      burn("half", turn * 5 / 10)
      burn("third", turn * 3 / 10)
      burn("fifth", turn * 2 / 10)
      left -= turn
    end
    @burned
  end
end

# Samples by method, as stackprof counts them: :frames holds totals.
def stackprof(seconds)
  shares = Shares.new
  profile = StackProf.run(mode: :cpu, interval: 2004) { shares.run(seconds) }
  totals = profile[:frames].values.to_h { |frame| [frame[:name], frame[:total_samples]] }
  shares.burned.merge("stackprof" => totals.slice("Shares#half", "Shares#third", "Shares#fifth"))
end

is_profiled = ARGV.first == "stackprof"
require "stackprof" if is_profiled
$stdout.sync = true
puts "ready #{Process.pid}"
while (line = $stdin.gets)
  seconds = Float(line.split[1])
  puts JSON.generate(is_profiled ? stackprof(seconds) : Shares.new.run(seconds))
end
