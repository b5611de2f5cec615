# frozen_string_literal: true

# Methods of all kinds in the class Shop and around it. A line on its input does one step
# of STEPS, or is Ruby to be run.
$LOAD_PATH.unshift File.expand_path("../../ruby/lib", __dir__)
require "tracepoint/agent"

$stdout.sync = true

module Priced
  def price
    2
  end
end

module Audited
  def pay(amount)
    audit
    super
  end

  def audit; end
end

class Base
  def self.find(number)
    new.number(number)
  end

  def number(number)
    number
  end
end

class Shop < Base
  include Priced
  prepend Audited

  def pay(amount)
    charge(amount)
  end
  alias settle pay
  alias_method :old_total, :number # inherited

  def charge(amount)
    amount.zero? ? 0 : charge(amount - 1) + price
  end

  def number(number)
    super + 1
  end

  # A method that is called by its former name.
  def total
    3
  end
  alias total_without_tax total
  def total # rubocop:disable Lint/DuplicateMethods
    total_without_tax + 1
  end

  # Defines a method each time; both have the same instructions then.
  def outer
    def inner # rubocop:disable Lint/NestedMethodDefinition
      4
    end
    inner
  end

  def fails
    raise IndexError, "no"
  end

  def rescues
    fails
  rescue IndexError
    total
  ensure
    price
  end

  def throws
    throw :done, 1
  end

  def catches
    catch(:done) { throws }
  end

  def yields
    yield 1
  end

  def breaks
    yields { |n| break n }
  end

  def each(&block)
    yields(&block)
  end

  def generates
    Enumerator.new { |yielder| 3.times { |n| yielder << number(n) } }
  end

  def waits
    sleep 0.001
    price
  end

  def method_missing(name, *rest)
    name == :anything ? total : super
  end

  def respond_to_missing?(name, all = false)
    name == :anything || super
  end

  class << self
    def build
      new.price
    end

    private

    def secret
      build
    end
  end

  private

  def hidden
    price
  end
end

class Shop
  # The same instructions as Shop's, in another class.
  OTHER = Class.new(Base) { define_method(:borrowed, Base.instance_method(:number)) }
end

module Louder
  refine Shop do
    def shout
      price
    end
  end
end
using Louder

def kinds
  shop = Shop.new
  shop.pay(2)
  shop.settle(1)
  shop.old_total(1)
  shop.total
  2.times { shop.outer && shop.inner }
  shop.rescues
  shop.catches
  shop.breaks
  shop.each { |n| shop.number(n) }
  shop.generates.to_a
  shop.generates.next
  shop.anything
  shop.shout
  shop.__send__(:hidden)
  Shop.find(1)
  Base.find(2)
  Shop.__send__(:secret)
  Shop::OTHER.new.borrowed(3)
  begin
    shop.fails
  rescue IndexError
    nil
  end
  begin
    shop.nothing
  rescue NoMethodError
    nil
  end
end

STEPS = {
  "kinds" => -> { kinds },
  "threads" => -> { Array.new(6) { Thread.new { 3.times { Shop.new.waits && Shop.new.pay(3) } } }.each(&:join) },
  "fibers" => -> { Array.new(3) { Fiber.new { Fiber.yield(Shop.new.pay(1)) && Shop.new.rescues } }.each { |f| 2.times { f.resume } } },
  "made" => -> { Made.new.run && Made.new.walk }
}.freeze

# By blocks, which give several methods the same instructions.
class Made
  %w[run walk].each { |name| define_method(name) { step(name) } }

  def step(name)
    name
  end
end

puts "ready #{Process.pid}"
while (line = $stdin.gets)
  step = STEPS[line.chomp]
  puts "done #{step ? step.call && nil : eval(line)}"
end
