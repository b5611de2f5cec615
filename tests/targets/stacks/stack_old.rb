# frozen_string_literal: true

# Threads that wait in frames of several kinds, for any Ruby from 2.1 on, and for a
# miniruby: nothing is required. Prints "ready" with JSON: the stack of each thread as Ruby
# reports it (path, line, label; the newest first), in the order of the threads' creation.

def wait
  sleep
end

module Greeting
  def greet
    wait
  end
end

class Animal
  include Greeting

  def blocks
    [1].each { |_| [2].map { |_| wait } }
  end

  def self.singleton
    wait
  end

  def rescued
    raise "caught"
  rescue StandardError
    wait
  end

  def ensured
    1 + 1
  ensure
    wait
  end

  def evaluated
    eval("wait\n", binding, "evaluated.rb", 42)
  end

  def recursive(depth)
    depth.zero? ? wait : recursive(depth - 1)
  end

  define_method(:defined) { wait }

  def method_missing(name, *args)
    name == :ghost ? wait : super
  end

  def respond_to_missing?(name, include_private = false)
    name == :ghost || super
  end

  def lines
    x = 0
    x += 1
    x += 1 if x.zero?

    [x].each do |y|
      x += y
      wait
    end
  end
end

class Puppy < Animal
  def blocks # rubocop:disable Lint/UselessMethodDefinition
    super
  end
end

CASES = [
  -> { Animal.new.greet },
  -> { Animal.new.blocks },
  -> { Animal.singleton },
  -> { Animal.new.rescued },
  -> { Animal.new.ensured },
  -> { Animal.new.evaluated },
  -> { Animal.new.recursive(40) },
  -> { Animal.new.defined },
  -> { Animal.new.ghost },
  -> { Animal.new.lines },
  -> { Puppy.new.blocks },
  -> { [3, 1].sort_by { |_| wait } },
  -> { catch(:done) { wait } },
  -> { Fiber.new { Animal.new.lines }.resume },
  -> { [Animal.new].each(&:greet) },
  -> { Animal.new.instance_eval { wait } }
].freeze

threads = CASES.map { |body| Thread.new { body.call } }
Thread.pass until threads.all? { |thread| thread.status == "sleep" }

stacks = threads.map do |thread|
  frames = thread.backtrace_locations.map { |at| "[#{at.path.inspect}, #{at.lineno}, #{at.label.inspect}]" }
  "[#{frames.join(", ")}]"
end
$stdout.puts "ready [#{stacks.join(", ")}]"
$stdout.flush
$stdin.gets
