# frozen_string_literal: true

# Runs forever in calls that can be recognized: on each of LEVELS levels, there are four
# methods t<level>_<number>, each with three calls on three lines. Line 100 * (level + 1) +
# 10 * number + site calls t<level + 1>_<(number + site) % 4>. A test can thus verify for
# any two adjacent frames whether one called the other.

LEVELS = Integer(ARGV[0] || 12)

# How a level calls the next: plainly, from a block, or through a C function.
FORMS = [
  ->(callee) { "#{callee}(x + 1)" },
  ->(callee) { "#{callee}(x + 1)" },
  ->(callee) { "again { #{callee}(x) }" },
  ->(callee) { "ONE.each { |y| #{callee}(y) }" }
].freeze
ONE = [1].freeze

def again
  yield
end

def define_tag(level, number)
  calls = (0..2).map do |site|
    callee = "t#{level + 1}_#{(number + site) % 4}"
    level == LEVELS - 1 ? "x += #{site}" : FORMS[level % 4].call(callee)
  end
  Object.class_eval(<<~RUBY, "tags.rb", (100 * level) + (10 * number) + 99)
    def t#{level}_#{number}(x)
      #{calls.join("\n  ")}
    end
  RUBY
end

LEVELS.times { |level| 4.times { |number| define_tag(level, number) } }
$stdout.puts "ready"
$stdout.flush
loop { 4.times { |number| send("t0_#{number}", 0) } }
