# frozen_string_literal: true

# A program whose methods' arguments and objects are known: each line of input names a step.
$LOAD_PATH.unshift File.expand_path("../../../ruby/lib", __dir__)
require "tracepoint/agent"

$stdout.sync = true

# The example of rbtrace's manual.
class String
  def multiply_vowels(num)
    @test = 123
    gsub(/[aeiou]/) { |m| m * num }
  end
end

class Order
  attr_reader :id

  def initialize(id)
    @id = id
  end

  def add(item, count: 1)
    leaf
    [item, count]
  end

  def leaf; end

  def self.find(id)
    new(id)
  end

  def inspect
    "#<Order \"#{@id}\">"
  end
end

STEPS = {
  "vowels" => -> { "hello".dup.multiply_vowels(3) },
  "orders" => -> { Order.find(7).add("a\e[1m\u202e", count: 2) },
  "stuck" => -> { Order.find(8).id == 8 ? "right" : "wrong" }
}.freeze

puts "ready"
while (line = $stdin.gets)
  said = STEPS.fetch(line.chomp).call
  puts said.is_a?(String) ? "done #{said}" : "done"
end
