# frozen_string_literal: true

# Threads parked in every kind of frame. Prints "ready" with JSON: by thread name, the
# stack that Ruby itself reports (path, line, label; the newest first), and by label of a
# method, its name with Method#owner. Then it parks.

require "json"

# A collection would empty the caches of calls that have not returned (3.4 and later),
# by which it is seen that a method is another name of ``send``.
GC.disable

GATE = Queue.new

def park
  GATE.pop
end

module Greeting
  def greet
    park
  end

  def self.salute
    park
  end
end

module Shouting
  refine String do
    def shout
      park
    end
  end
end

class Animal
  include Greeting

  def plain
    park
  end

  def blocks
    [1].each { |_| [2].map { |_| park } }
  end

  def c_functions
    [3, 1].sort_by { |_| park }
  end

  def self.singleton
    park
  end

  class << self
    def opened
      park
    end
  end

  define_method(:defined) { park }
  define_method(:defined_deep) { [1].each { park } }

  def rescued
    raise "caught"
  rescue StandardError
    park
  end

  def ensured
    1 + 1
  ensure
    park
  end

  def rescued_in_block
    [1].each do
      raise ArgumentError, "caught"
    rescue ArgumentError
      park
    end
  end

  def evaluated
    eval("park\n", binding, "evaluated.rb", 42)
  end

  def block_given
    yield
  end

  def with_proc(&block)
    block.call
  end

  def recursive(depth)
    depth.zero? ? park : recursive(depth - 1)
  end

  def keywords(first:, second: park)
    [first, second]
  end

  def long_method
    x = 0
    x += 1
    x += 2 if x.zero?
    x -= 1 unless x.zero?
    [x].each { |y| x += y }
    x += 1
    x += 1
    x += 1
    x += 1
    x += 1
    x += 1
    x += 1
    x += 1
    x += 1
    x += 1
    x += 1
    x += 1
    x += 1
    x += 1
    x += 1
    x += 1
    park
    x
  end

  def method_missing(name, *args)
    name == :ghost ? park : super
  end

  def respond_to_missing?(name, include_private = false)
    name == :ghost || super
  end

  alias other_name plain
  alias send_action send
  alias action plain

  module Nested
    class Deep
      def method_in_nested
        park
      end
    end
  end
end

class Puppy < Animal
  def plain # rubocop:disable Lint/UselessMethodDefinition
    super
  end
end

# Code that the body of a class or module runs.
module Using
  using Shouting

  def self.refined
    "loud".shout
  end
end

# Not assigned to a constant, which would name it.
NAMELESS = [Class.new do
  def anonymous
    park
  end

  def self.anonymous_class_method
    park
  end
end].freeze

OBJECT = Animal.new
def OBJECT.its_own
  park
end

EVALUATED = Animal.new
EVALUATED.instance_eval do
  def evaluated_singleton
    park
  end
end

# As Rails calls its actions: ``super`` goes to an alias of Kernel#send.
class Controller < Animal
  def send_action(name)
    result = super
    result.to_i
  end
end

class Proc
  alias execute call
end

Animal.class_eval("def evaled_method\n  park\nend\n", "evaled.rb", 7)

CASES = {
  "plain" => -> { Animal.new.plain },
  "inherited" => -> { Puppy.new.plain },
  "alias" => -> { Animal.new.other_name },
  "alias of send" => -> { Animal.new.send_action(:plain) },
  "alias of send to an alias" => -> { Animal.new.send_action(:action) },
  "super to an alias of send" => -> { Controller.new.send_action(:c_functions) },
  "alias of call" => -> { proc { park }.execute },
  "module" => -> { Animal.new.greet },
  "module function" => -> { Greeting.salute },
  "blocks" => -> { Animal.new.blocks },
  "c functions" => -> { Animal.new.c_functions },
  "singleton" => -> { Animal.singleton },
  "opened" => -> { Animal.opened },
  "inherited singleton" => -> { Puppy.singleton },
  "define_method" => -> { Animal.new.defined },
  "define_method deep" => -> { Animal.new.defined_deep },
  "rescue" => -> { Animal.new.rescued },
  "ensure" => -> { Animal.new.ensured },
  "rescue in block" => -> { Animal.new.rescued_in_block },
  "eval" => -> { Animal.new.evaluated },
  "yield" => -> { Animal.new.block_given { park } },
  "proc" => -> { Animal.new.with_proc { park } },
  "symbol proc" => -> { [Animal.new].each(&:plain) },
  "send" => -> { Animal.new.public_send(:plain) },
  "method call" => -> { Animal.new.method(:plain).call },
  "method_missing" => -> { Animal.new.ghost },
  "nested" => -> { Animal::Nested::Deep.new.method_in_nested },
  "refinement" => -> { Using.refined },
  "anonymous" => -> { NAMELESS.first.new.anonymous },
  "anonymous class method" => -> { NAMELESS.first.anonymous_class_method },
  "object's own" => -> { OBJECT.its_own },
  "instance_eval" => -> { Animal.new.instance_eval { park } },
  "instance_exec" => -> { EVALUATED.evaluated_singleton },
  "class_eval" => -> { Animal.new.evaled_method },
  "class body" => -> { eval("class Body\n  park_in_body = GATE.pop\nend", nil, "body.rb", 3) },
  "recursion" => -> { Animal.new.recursive(60) },
  "keywords" => -> { Animal.new.keywords(first: 1) },
  "long method" => -> { Animal.new.long_method },
  "fiber" => -> { Fiber.new { Animal.new.plain }.resume },
  "fiber in fiber" => -> { Fiber.new { Fiber.new { Animal.new.blocks }.resume }.resume },
  "enumerator" => -> { Enumerator.new { |y| y << Animal.new.plain }.next },
  "times" => -> { 1.times { park } }, # rubocop:disable Lint/UselessTimes
  "hash" => -> { { a: 1 }.each_pair { |_, _| park } },
  "tap" => -> { 1.tap { park } },
  "loop" => -> { loop { park } },
  "catch" => -> { catch(:done) { park } },
  "sort" => -> { [2, 1].sort { |_, _| park } },
  "late singleton" => -> { Animal.late_singleton }
}.freeze
Animal.define_singleton_method(:late_singleton) { park }

threads = CASES.map do |name, body|
  Thread.new { body.call }.tap { |thread| thread.name = name }
end
threads += Array.new(50) do |number|
  Thread.new { Animal.new.recursive(number) }.tap { |thread| thread.name = "many #{number}" }
end
Thread.pass until threads.all? { |thread| thread.status == "sleep" }

def locations(thread)
  thread.backtrace_locations.map { |at| [at.path, at.lineno, at.label] }
end

# The method's name with its owner, which is the expected qualified name.
def qualified(method)
  owner = method.owner
  return "#{owner.inspect}##{method.name}" unless owner.singleton_class?

  "#{method.receiver.inspect}.#{method.name}"
end

own = [
  Animal.new.method(:plain), Animal.new.method(:blocks), Animal.new.method(:greet),
  Animal.new.method(:rescued), Animal.new.method(:ensured), Animal.new.method(:recursive),
  Animal.new.method(:evaluated), Animal.method(:singleton), Animal.method(:opened),
  Greeting.method(:salute), Animal::Nested::Deep.new.method(:method_in_nested),
  Animal.new.method(:block_given), Animal.new.method(:long_method), Animal.new.method(:keywords),
  Animal.new.method(:rescued_in_block), Using.method(:refined), Animal.new.method(:evaled_method),
  NAMELESS.first.new.method(:anonymous), method(:park), [].method(:each), [].method(:map),
  [].method(:sort_by), Kernel.instance_method(:loop).bind(self), GATE.method(:pop),
  Animal.new.method(:with_proc), {}.method(:each_pair), method(:catch), Animal.new.method(:method_missing)
].to_h { |method| [method.name, qualified(method)] }

answer = {
  version: RUBY_VERSION,
  stacks: threads.to_h { |thread| [thread.name, locations(thread)] },
  owners: own,
  anonymous: format("0x%016x", NAMELESS.first.inspect[/0x(\h+)/, 1].hex),
  object: format("0x%016x", OBJECT.inspect[/0x(\h+)/, 1].hex),
  tids: threads.map { |thread| thread.respond_to?(:native_thread_id) ? thread.native_thread_id : nil }
}
$stdout.puts "ready #{JSON.generate(answer)}"
$stdout.flush
$stdin.gets
