# frozen_string_literal: true

# rubocop:disable Lint/UselessMethodDefinition, Lint/MissingSuper, Lint/UselessTimes
# rubocop:disable Lint/UnreachableLoop, Lint/UnusedMethodArgument

# All kinds of frames. Each kind is a method that calls the next kind of a plan with
# ``Go.on(plan, at)``. A plan is an Array of the methods' names. Its end calls ``Go.last``,
# which the program defines. Runs on every Ruby from 2.7 on, and needs no library.

module Go
  def self.on(plan, at)
    name = plan[at]
    name ? KINDS.send(name, plan, at + 1) : last(plan)
    0
  end

  # A plan of at most ``most`` kinds out of ``names``.
  def self.draw(random, names, most)
    Array.new(1 + random.rand(most)) { names[random.rand(names.size)] }.freeze
  end
end

# The exception that leads to an ensure or a rescue.
class Leap < StandardError
end

module Mixed
  def in_module(plan, at)
    Go.on(plan, at)
  end
end

module Ahead
  def ahead(plan, at)
    super
  end
end

class Base
  include Mixed

  def inherited(plan, at)
    Go.on(plan, at)
  end

  def ahead(plan, at)
    Go.on(plan, at)
  end
  prepend Ahead
end

class Derived < Base
  attr_accessor :plan, :at

  def initialize(plan = nil, at = nil)
    super()
    @plan = plan
    @at = at
  end

  def inherited(plan, at)
    super
  end

  alias other_name inherited

  def self.of_class(plan, at)
    new.in_module(plan, at)
  end

  class << self
    def opened(plan, at)
      Go.on(plan, at)
    end
  end

  define_method(:defined_by_block) { |plan, at| Go.on(plan, at) }
  define_method(:defined_deep) do |plan, at|
    [plan].each do |one|
      Go.on(one, at)
    end
  end

  def without_arguments
    Go.on(@plan, @at)
  end

  def each
    yield 1
    yield 2
  end
  include Enumerable

  def <=>(_other)
    go_once
    0
  end
  include Comparable

  def go_once
    return unless @plan

    plan = @plan
    @plan = nil
    Go.on(plan, @at)
  end

  def to_s
    go_once
    "derived"
  end

  def to_str
    go_once
    "derived"
  end

  def to_ary
    go_once
    [1, 2]
  end

  def to_proc
    go_once
    proc { |x| x }
  end

  def coerce(other)
    go_once
    [other, 1]
  end

  def ==(other)
    go_once
    equal?(other)
  end

  def ===(_other)
    go_once
    true
  end

  def hash
    go_once
    1
  end

  def +(other)
    go_once
    other
  end

  def []=(_key, value)
    go_once
    @value = value
  end

  def -@
    go_once
    self
  end

  def call(*)
    go_once
  end

  def method_missing(name, *args)
    name == :ghost ? Go.on(*args) : super
  end

  def respond_to_missing?(name, include_private = false)
    name == :ghost || super
  end

  class_eval("def evaluated_method(plan, at)\n\n  Go.on(plan, at)\nend\n", "evaluated.rb", 7)

  module Nested
    class Deep
      def in_nested(plan, at)
        Go.on(plan, at)
      end
    end
  end
end

# As Rails calls its actions: a method of this name, whose super is an alias of send.
class Acting < Derived
  alias send_action send

  module Rendering
    def send_action(name, *arguments)
      super
    end
  end
  prepend Rendering
end

class Starting
  def initialize(plan, at)
    @gone = Go.on(plan, at)
  end
end

class Hooked
  def self.inherited(child)
    super
    plan, at = Thread.current[:hooked]
    Go.on(plan, at)
  end
end

class Bare < BasicObject
  def bare(plan, at)
    ::Go.on(plan, at)
  end
end

module Shouting
  refine String do
    def shout(plan, at)
      Go.on(plan, at)
    end

    def upcase
      "#{super}!"
    end
  end
end

NAMELESS = Class.new do
  def nameless(plan, at)
    Go.on(plan, at)
  end

  def self.nameless_of_class(plan, at)
    new.nameless(plan, at)
  end
end

class Kinds
  using Shouting

  def in_method(plan, at)
    Go.on(plan, at)
  end

  def in_included(plan, at)
    Base.new.in_module(plan, at)
  end

  def in_super(plan, at)
    Derived.new.inherited(plan, at)
  end

  def in_alias(plan, at)
    Derived.new.other_name(plan, at)
  end

  def in_prepended(plan, at)
    Derived.new.ahead(plan, at)
  end

  def in_class_method(plan, at)
    Derived.of_class(plan, at)
  end

  def in_opened(plan, at)
    Derived.opened(plan, at)
  end

  def in_nested(plan, at)
    Derived::Nested::Deep.new.in_nested(plan, at)
  end

  def in_defined(plan, at)
    Derived.new.defined_by_block(plan, at)
  end

  def in_defined_deep(plan, at)
    Derived.new.defined_deep(plan, at)
  end

  def in_evaluated_method(plan, at)
    Derived.new.evaluated_method(plan, at)
  end

  def in_missing(plan, at)
    Derived.new.ghost(plan, at)
  end

  def in_send(plan, at)
    Derived.new.public_send(:inherited, plan, at)
  end

  def in_alias_of_send(plan, at)
    Acting.new.send_action(:inherited, plan, at)
  end

  def in_method_object(plan, at)
    Derived.new.method(:inherited).call(plan, at)
  end

  def in_unbound(plan, at)
    Base.instance_method(:inherited).bind(Derived.new).call(plan, at)
  end

  def in_nameless(plan, at)
    NAMELESS.nameless_of_class(plan, at)
  end

  def in_bare(plan, at)
    Bare.new.bare(plan, at)
  end

  def in_refined(plan, at)
    "loud".shout(plan, at)
  end

  def in_singleton(plan, at)
    one = Base.new
    def one.its_own(plan, at)
      Go.on(plan, at)
    end
    one.its_own(plan, at)
  end

  def in_initialize(plan, at)
    Starting.new(plan, at)
  end

  def in_hook(plan, at)
    Thread.current[:hooked] = [plan, at]
    Class.new(Hooked)
  end

  def in_each(plan, at)
    [1].each { |_| Go.on(plan, at) }
  end

  def in_nested_blocks(plan, at)
    [1].each do |_|
      [2].map { |_| Go.on(plan, at) }
    end
  end

  def in_map_index(plan, at)
    [1].each_with_index.map do |_, _|
      Go.on(plan, at)
    end
  end

  def in_inject(plan, at)
    [1, 2].inject { |_, _| Go.on(plan, at) }
  end

  def in_sort(plan, at)
    [2, 1].sort { |_, _| Go.on(plan, at) }
  end

  def in_sort_by(plan, at)
    [2].sort_by { |_| Go.on(plan, at) }
  end

  def in_max_by(plan, at)
    [2].max_by { |_| Go.on(plan, at) }
  end

  def in_pair(plan, at)
    { a: 1 }.each_pair { |_, _| Go.on(plan, at) }
  end

  def in_default_proc(plan, at)
    Hash.new { |_, _| Go.on(plan, at) }[1]
  end

  def in_times(plan, at)
    1.times { Go.on(plan, at) }
  end

  def in_upto(plan, at)
    1.upto(1) { |_| Go.on(plan, at) }
  end

  def in_step(plan, at)
    1.step(2, 2) { |_| Go.on(plan, at) }
  end

  def in_range(plan, at)
    (1..1).each { |_| Go.on(plan, at) }
  end

  def in_loop(plan, at)
    loop do
      break Go.on(plan, at)
    end
  end

  def in_while(plan, at)
    turns = 0
    while turns < 1
      turns += 1
      gone = Go.on(plan, at)
    end
    gone
  end

  def in_tap(plan, at)
    1.tap { |_| Go.on(plan, at) }
  end

  def in_then(plan, at)
    1.then { |_| Go.on(plan, at) }
  end

  def in_catch(plan, at)
    catch(:done) { |_| Go.on(plan, at) }
  end

  def in_gsub(plan, at)
    "ab".gsub(/a/) { Go.on(plan, at).to_s }
  end

  def in_own_each(plan, at)
    Derived.new.map { |_| break Go.on(plan, at) }
  end

  def in_inject_of_own(plan, at)
    Derived.new.each_slice(2) { |_| Go.on(plan, at) }
  end

  def given
    yield
  end

  def given_object(&block)
    block.call
  end

  def handed(&block)
    given(&block)
  end

  def in_yield(plan, at)
    given { Go.on(plan, at) }
  end

  def in_block_object(plan, at)
    given_object { Go.on(plan, at) }
  end

  def in_handed_block(plan, at)
    handed { Go.on(plan, at) }
  end

  def in_lambda(plan, at)
    ->(x) { Go.on(x, at) }.call(plan)
  end

  def in_proc(plan, at)
    proc { |x| Go.on(x, at) }.(plan)
  end

  def in_curry(plan, at)
    ->(x, y) { Go.on(x, y) }.curry[plan][at]
  end

  def in_symbol_proc(plan, at)
    [Derived.new(plan, at)].each(&:without_arguments)
  end

  def in_method_proc(plan, at)
    [plan].each(&Derived.new(plan, at).method(:call))
  end

  def in_composed(plan, at)
    (->(x) { Go.on(x, at) } >> ->(x) { x }).call(plan)
  end

  def in_instance_exec(plan, at)
    Derived.new.instance_exec(plan) { |x| Go.on(x, at) }
  end

  def in_instance_eval(plan, at)
    Derived.new.instance_eval { Go.on(plan, at) }
  end

  def in_class_exec(plan, at)
    Derived.class_exec { Go.on(plan, at) }
  end

  def in_class_body(plan, at)
    Class.new { Go.on(plan, at) }
  end

  def in_module_body(plan, at)
    Module.new do
      Go.on(plan, at)
    end
  end

  def in_struct(plan, at)
    Struct.new(:a) { Go.on(plan, at) }
  end

  def in_eval(plan, at)
    eval("\n\nGo.on(plan, at)", binding, "evaluated.rb", 40)
  end

  def in_eval_here(plan, at)
    eval("[1].each { |_| Go.on(plan, at) }")
  end

  def in_eval_class(plan, at)
    Thread.current[:hooked] = [plan, at]
    eval("class ::Reopened\n  plan, at = Thread.current[:hooked]\n  Go.on(plan, at)\nend", nil, "body.rb", 3)
  end

  def in_eval_singleton(plan, at)
    Thread.current[:hooked] = [plan, at]
    eval("class << Derived\n  plan, at = Thread.current[:hooked]\n  Go.on(plan, at)\nend", nil, "meta.rb", 3)
  end

  def in_instance_eval_text(plan, at)
    Thread.current[:hooked] = [plan, at]
    Derived.new.instance_eval("Go.on(*Thread.current[:hooked])", "text.rb", 9)
  end

  def in_rescue(plan, at)
    raise Leap
  rescue Leap
    Go.on(plan, at)
  end

  def in_rescue_modifier(plan, at)
    raise Leap rescue Go.on(plan, at)
  end

  def in_rescue_in_block(plan, at)
    [1].each do
      raise Leap
    rescue Leap
      Go.on(plan, at)
    end
  end

  def in_rescued_by(plan, at)
    raise Leap
  rescue matching(plan, at)
    nil
  end

  def matching(plan, at)
    Go.on(plan, at)
    Leap
  end

  def in_nested_rescue(plan, at)
    begin
      raise Leap
    rescue Leap
      raise ArgumentError
    end
  rescue ArgumentError
    Go.on(plan, at)
  end

  def in_ensure(plan, at)
    1 + at
  ensure
    Go.on(plan, at)
  end

  def in_raised_ensure(plan, at)
    begin
      raise Leap
    ensure
      Go.on(plan, at)
    end
  rescue Leap
    nil
  end

  def in_thrown_ensure(plan, at)
    catch(:done) do
      throw :done
    ensure
      Go.on(plan, at)
    end
  end

  def in_broken_ensure(plan, at)
    [1].each do
      break
    ensure
      [2].each { Go.on(plan, at) }
    end
  end

  def in_retry(plan, at)
    turns ||= 0
    raise Leap if (turns += 1) < 2

    Go.on(plan, at)
  rescue Leap
    retry
  end

  def with_defaults(plan, at, gone = Go.on(plan, at))
    gone
  end

  def in_default(plan, at)
    with_defaults(plan, at)
  end

  def with_keywords(plan:, at:, gone: Go.on(plan, at))
    gone
  end

  def in_keywords(plan, at)
    with_keywords(plan: plan, at: at)
  end

  def with_rest(*rest, **options, &_block)
    options.empty? ? Go.on(*rest) : nil
  end

  def in_splat(plan, at)
    arguments = [plan, at]
    with_rest(*arguments)
  end

  def in_forwarded(plan, at)
    forward(plan, at)
  end

  def forward(...)
    with_rest(...)
  end

  def in_comparison(plan, at)
    Derived.new(plan, at) < Derived.new
  end

  def in_sorted_objects(plan, at)
    [Derived.new, Derived.new(plan, at)].sort
  end

  def in_interpolation(plan, at)
    "text #{Derived.new(plan, at)}"
  end

  def in_string_conversion(plan, at)
    "text" + Derived.new(plan, at)
  end

  def in_array_conversion(plan, at)
    [1].concat(Derived.new(plan, at))
  end

  def in_multiple_assignment(plan, at)
    first, _second = Derived.new(plan, at)
    first
  end

  def in_proc_conversion(plan, at)
    [1].map(&Derived.new(plan, at))
  end

  def in_coercion(plan, at)
    1 + Derived.new(plan, at)
  end

  def in_equality(plan, at)
    [Derived.new(plan, at)].include?(3)
  end

  def in_case(plan, at)
    case at
    when Derived.new(plan, at) then 1
    end
  end

  def in_hash_key(plan, at)
    { Derived.new(plan, at) => 1 }
  end

  def in_operator(plan, at)
    Derived.new(plan, at) + 1
  end

  def in_assignment(plan, at)
    one = Derived.new(plan, at)
    one[1] = 2
    one
  end

  def in_unary(plan, at)
    -Derived.new(plan, at)
  end

  def in_safe_call(plan, at)
    Derived.new(plan, at)&.without_arguments
  end

  def in_chain(plan, at)
    [plan]
      .map { |x| x }
      .select { |x| x }
      .each { |x| Go.on(x, at) }
  end

  def in_condition(plan, at)
    if at.zero? || Go.on(plan, at)
      1
    else
      2
    end
  end

  def in_long_method(plan, at)
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
    Go.on(plan, at)
    x
  end

  def in_recursion(plan, at, depth = 12)
    return Go.on(plan, at) if depth.zero?

    in_recursion(plan, at, depth - 1)
  end

  def in_fiber(plan, at)
    Fiber.new { Go.on(plan, at) }.resume
  end

  def in_resumed_fiber(plan, at)
    fiber = Fiber.new do |x|
      y = Fiber.yield(x)
      Go.on(y, at)
    end
    fiber.resume(plan)
    fiber.resume(plan)
  end

  def in_enumerator(plan, at)
    Enumerator.new { |y| y << Go.on(plan, at) }.next
  end

  def in_external(plan, at)
    [1].map.with_index { |_, _| Go.on(plan, at) }
  end

  def in_lazy(plan, at)
    (1..3).lazy.map { |_| Go.on(plan, at) }.first(1)
  end

  def in_thread(plan, at)
    Thread.new { Go.on(plan, at) }.value
  end

  def in_named_thread(plan, at)
    Thread.new(plan, at, &Go.method(:on)).join
  end

  def in_mutex(plan, at)
    Mutex.new.synchronize { Go.on(plan, at) }
  end

  def in_trap(plan, at)
    Thread.current[:hooked] = [plan, at]
    Process.kill(:USR2, Process.pid)
  end

  # For the main thread only, because signal handlers run there.
  def handle
    Go.on(*Thread.current[:hooked])
  end

  def in_load(plan, at)
    Thread.current[:hooked] = [plan, at]
    load(File.join(__dir__, "truth_loaded.rb"))
  end

  def in_ractor(plan, at)
    one = Ractor.new(plan, at) { |x, y| Go.on(x, y) }
    one.respond_to?(:value) ? one.value : one.take
  end
end

KINDS = Kinds.new.freeze
ALL = Kinds.public_instance_methods(false).grep(/\Ain_/).sort.freeze
# Kinds that wait for another thread, or can only be at the beginning of a plan.
THREADS = %i[in_thread in_named_thread].freeze
FIRST = %i[in_trap in_ractor].freeze
# Kinds that do not work in a Ractor: blocks as methods, shared objects, and fibers,
# with which Ruby itself sometimes crashes there.
NOT_IN_RACTORS = %i[
  in_defined in_defined_deep in_nameless in_fiber in_resumed_fiber in_enumerator in_load in_hook
].freeze
# rubocop:enable Lint/UselessMethodDefinition, Lint/MissingSuper, Lint/UselessTimes
# rubocop:enable Lint/UnreachableLoop, Lint/UnusedMethodArgument
