# frozen_string_literal: true

# Stops COUNT times, each time in another stack: draws a plan of frames (SEED), prints its
# own stack at the plan's end, and waits for a line. A stack is its frames, newest first,
# separated by "\x1e". A frame is path, line, and label, separated by "\t". First it prints
# "ready" with the methods of truth_kinds.rb in the same form: line, name, and the name
# with its owner.

require_relative "truth_kinds"

count, seed = ARGV.map(&:to_i)

module Go
  # Both calls are on one line, so that the frame has the same line in both.
  def self.last(_plan)
    tell(caller_locations(0)); $stdin.gets
  end

  def self.tell(stack)
    frames = stack.map { |at| "#{at.path}\t#{at.lineno}\t#{at.label}" }
    $stdout.write("#{frames.join("\x1e")}\n")
    $stdout.flush
  end
end

# Line where a method begins, its name, and the name with its owner.
def names_of(owner, prefix)
  (owner.instance_methods(false) + owner.private_instance_methods(false)).map do |name|
    method = owner.instance_method(name)
    "#{method.source_location&.last}\t#{name}\t#{prefix}#{name}" if method.owner == owner
  end
end

NAMES = [
  *[Kinds, Base, Derived, Mixed, Ahead, Starting, Bare, Derived::Nested::Deep].flat_map do |one|
    names_of(one, "#{one}#")
  end,
  *[Go, Hooked, Derived].flat_map { |one| names_of(one.singleton_class, "#{one}.") }
].compact.freeze

if RUBY_VERSION >= "3.0"
  Warning[:experimental] = false
  ractors = ALL - NOT_IN_RACTORS - THREADS - FIRST
end
inner = ALL - FIRST
trap(:USR2) { KINDS.handle }
random = Random.new(seed)
$stdout.sync = true
$stdout.write("ready #{NAMES.join("\x1e")}\n")
count.times do |number|
  # Ractors come last, because Ruby behaves differently once a Ractor existed.
  if ractors && number >= count * 4 / 5
    plan = [:in_ractor, *Go.draw(random, ractors, 8)].freeze
  else
    plan = Go.draw(random, inner, 10)
    plan = [:in_trap, *(plan - [:in_mutex])].freeze if random.rand(20).zero?
  end
  Go.on(plan, 0)
end
$stdout.write("done\n")
$stdin.gets
