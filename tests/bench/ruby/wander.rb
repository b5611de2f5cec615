# frozen_string_literal: true

# Stacks that rarely repeat: random methods call each other, 25 deep, and are redefined
# meanwhile.
#
#   wander.rb THREADS

$stdout.sync = true
WAYS = 8
DEPTH = 25

class Walk
  def self.pave(number)
    class_eval <<~RUBY, __FILE__, __LINE__ + 1
      def way#{number}(left)
        left.zero? ? turn : __send__(:"way\#{rand(WAYS)}", left - 1)
      end
    RUBY
  end

  WAYS.times { |number| pave(number) }

  def turn
    20.times { |number| number * 3 }
  end
end

def wander
  walk = Walk.new
  (1..).each do |count|
    walk.way0(DEPTH)
    Walk.pave(rand(WAYS)) if (count % 5000).zero?
  end
end

puts "ready"
Array.new(Integer(ARGV.fetch(0))) { Thread.new { wander } }.each(&:join)
