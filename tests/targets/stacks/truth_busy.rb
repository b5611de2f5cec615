# frozen_string_literal: true

# Runs without pause in frames of all kinds (truth_kinds.rb), drawn by SEED. Its only
# thread never releases the GVL.
#
#   truth_busy.rb SEED [keep]    keep: no code is freed

require_relative "truth_kinds"

module Go
  def self.last(plan)
    sum = 0
    40.times { |turn| sum += small(turn) + plan.size }
    words = Array.new(4) { |one| "#{one}:#{sum}" }
    words.each_with_object({}) { |word, all| all[word] = word.size }
    fibonacci(9)
  end

  def self.small(turn)
    sum = 0
    while sum < 60
      sum += turn.odd? ? 3 : 2
    end
    sum
  end

  def self.fibonacci(number)
    return number if number < 2

    fibonacci(number - 1) + fibonacci(number - 2)
  end
end

kinds = ALL - THREADS - FIRST - %i[in_load]
plans = Random.new(ARGV.first.to_i)
GC.disable if ARGV[1] == "keep"
$stdout.sync = true
$stdout.write("ready\n")
loop { Go.on(Go.draw(plans, kinds, 10), 0) }
