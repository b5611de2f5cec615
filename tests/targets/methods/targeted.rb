# frozen_string_literal: true

# Methods of all kinds in the class Shop and around it. A line of its input names a step
# of STEPS, or is Ruby code to run.
$LOAD_PATH.unshift File.expand_path("../../../ruby/lib", __dir__)
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

# Methods that Ruby itself calls, by an operator, iterator, conversion, or otherwise.
class Kinds
  include Comparable
  include Enumerable

  attr_accessor :number

  def initialize(number = 1, *_rest, key: default, **_more, &block)
    @number = number + key
    instance_exec(&block) if block
  end

  def initialize_copy(other)
    super
    @number = other.number
  end

  def default
    0
  end

  def <=>(other)
    number <=> other.number
  end

  def each
    yield 1
    yield 2
  end

  def +(other)
    number + other.to_int
  end

  def -@
    -number
  end

  def !
    false
  end

  def [](index)
    index
  end

  def []=(index, value)
    @number = index + value
  end

  def ===(other)
    other == 1
  end

  def coerce(other)
    [other, number]
  end

  def to_int
    number
  end

  def to_s
    "kinds"
  end

  def to_ary
    [1, 2]
  end

  def to_proc
    ->(n) { n + default }
  end

  def hash
    number.hash
  end

  def eql?(other)
    number == other.number
  end

  def forwards(...)
    takes(...)
  end

  def takes(first, *rest, last: default)
    first + rest.size + last
  end

  def returns_from_a_block
    each { |n| return n + default } # rubocop:disable Lint/UnreachableLoop
  end

  def returns_from_ensure
    raise IndexError
  ensure
    return default # rubocop:disable Lint/EnsureReturn
  end

  def retries
    attempts ||= 0
    attempts += 1
    Integer(attempts < 3 ? "no" : "3")
  rescue ArgumentError
    default
    retry
  end

  def evaluates
    eval("default") + instance_eval { default } + binding.eval("default")
  end

  def makes_lambdas
    -> { default }.call + proc { default }.call + method(:default).call + [self].sum(&:default)
  end

  def asks(other)
    other.guarded
  end

  def waits_for(ready, queue)
    ready << 1
    queue.pop
  rescue IndexError
    default
    raise
  ensure
    default
  end

  def fails_in_a_block
    each { |n| Array.new(n) { Integer("no") } }
  ensure
    default
  end

  def fails_in_ensure
    raise IndexError
  ensure
    Integer("no")
  end

  def throws(tag)
    each { throw tag } # rubocop:disable Lint/UnreachableLoop
  ensure
    default
  end

  def suspends
    default + Fiber.yield
  ensure
    default
  end

  def self.inherited(_)
    super
    Kinds.made
  end

  def self.made
    new { default }
  end

  protected

  def guarded
    default
  end
end

module Tools
  module_function

  def useful
    helper
  end

  def helper
    1
  end
end

SINGLE = Object.new
def SINGLE.single
  Point.new(1).shifted
end

Point = Struct.new(:x) do
  def shifted
    x + 1
  end
end

# Its arguments are calls.
def use(*); end

def called_by_ruby
  a = Kinds.new
  b = Kinds.new(2, 3, key: 1, more: 4) { default }
  use(a.dup < b, [b, a].min, a.sort, a.include?(2), a.each_slice(1).to_a, a.lazy.map { |n| n }.first)
  use(a + b, -a, !a, a[1], (a[1] = 2), 3 + a, Integer(a), "#{a}", [5].map(&a), { a => 1 }[b])
  first, second = *a, b
  [[a]].each { |(one, two)| use(one, two, first, second) }
  one = 1
  case one when a then a.forwards(1, 2, last: 3) end
  use(a.returns_from_a_block, a.returns_from_ensure, a.retries, a.evaluates, a.makes_lambdas, a.asks(b))
  use(Class.new(Kinds), Tools.useful, SINGLE.single, a.public_send(:default), Kinds.instance_method(:default).bind(a).call)
  trap(:USR1) { $handled = a.default }
  $handled = nil
  Process.kill(:USR1, Process.pid)
  Thread.pass until $handled
end

def waiting(found = Kinds.new)
  ready, queue = Queue.new, Queue.new
  thread = Thread.new { found.waits_for(ready, queue) }
  thread.report_on_exception = false
  ready.pop
  Thread.pass until queue.num_waiting == 1
  yield thread, queue
  thread.join
rescue IndexError
  found.default
end

def failing(*errors)
  yield
rescue *errors
  Kinds.new
end

def exceptions
  kinds = Kinds.new
  waiting { |thread| thread.kill }
  waiting { |thread| thread.raise(IndexError) }
  waiting { |_, queue| queue << 1 }
  failing(ArgumentError) { kinds.fails_in_a_block }
  failing(ArgumentError) { kinds.fails_in_ensure }
  failing(ArgumentError) { Kinds.new { Integer("no") } }
  failing(UncaughtThrowError) { kinds.throws(:nobody) }
  catch(:done) { Fiber.new { catch(:inner) { kinds.throws(:inner) } }.resume && kinds.throws(:done) }
  failing(ArgumentError) { Fiber.new { kinds.fails_in_a_block }.resume }
  failing(IndexError) { Fiber.new { kinds.suspends }.tap(&:resume).raise(IndexError) }
  Fiber.new { kinds.suspends }.tap(&:resume).resume(2)
  $held = Fiber.new { kinds.suspends }.tap(&:resume)
  Thread.new { Thread.handle_interrupt(Object => :never) { kinds.each { Thread.exit } } }.join
  loop { kinds.each { raise StopIteration } } # rubocop:disable Lint/UnreachableLoop
end

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
  "called" => -> { called_by_ruby },
  "exceptions" => -> { exceptions },
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
