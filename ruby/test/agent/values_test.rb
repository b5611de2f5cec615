# frozen_string_literal: true

require "test_helper"
require "support/agent_target"

# Values of expressions at the entry of methods, and their effect on the program.
class AgentValuesTest < Minitest::Test
  include TestHelper
  include AgentHelper

  ORDER = <<~RUBY
    class Order
      attr_reader :id
      def initialize(id); @id = id; end
      def inspect; "#<Order \#{@id}>"; end
      def add(item, count = 1, *rest, price: 2, &block); [item, count, rest, price, block].size; end
      def self.find(id); id; end
      define_method(:made) { |first, second| first + second }
      private def secret; :hidden; end
    end
  RUBY

  # Return an array with one selector with these expressions.
  def selector(text, *expressions)
    owner, mark, name = text.match(/\A(?:(.+)([#.]))?(.+)\z/).captures
    kind = { "#" => "instance", "." => "singleton" }[mark]
    [{ owner: owner, kind: kind, name: name, expressions: expressions }]
  end

  # Return each entry's method name and values, in order.
  def values(client, memory)
    names = client.call("names")["methods"].to_h { |entry| [entry["index"], entry["name"]] }
    memory.read_all.flat_map { |records| told(records, names) }
  end

  def told(records, names)
    entries = []
    records.each do |record|
      entries << [names[record.method], +""] if %i[entry c_entry].include?(record.kind)
      entries.last.last << record.text if record.kind == :text
    end
    entries.map { |name, bytes| [name, *unpacked(bytes)] }
  end

  def unpacked(bytes)
    return [] if bytes.empty?

    _, what = bytes.slice!(0, 3).unpack("S<C")
    return [what] if what.positive?

    texts = []
    texts << bytes.slice!(0, bytes.slice!(0, 2).unpack1("S<")).force_encoding("UTF-8") until bytes.empty?
    texts
  end

  # Return the values of one step of the program.
  def shown(program, *selectors, **arming)
    target = target(program)
    client = connect(target)
    memory = client.arm(mode: "ring", offsets: OFFSETS, select: selectors.flatten, **arming)
    yield target if block_given?
    target.step unless block_given?
    values(client, memory)
  end

  def quoted(name)
    RUBY_VERSION < "3.4" ? "`#{name}'" : "'#{name}'"
  end

  def test_what_can_be_asked_for
    found = shown(<<~RUBY, selector("Order#add", *%w[self @id item count rest price self.id self.secret __source__ item+count]),
      #{ORDER}STEP = -> { Order.new(7).add(3, 4, 5, price: 6) { 1 } }
    RUBY
                  selector("Order#made", "second", "binding.local_variables"), selector("Order.find", "self", "id"))
    assert_equal [["add", "#<Order 7>", "7", "3", "4", "[5]", "6", "7", ":hidden", '"-e:6"', "7"]], found
  end

  def test_made_methods_and_singleton_ones
    found = shown(<<~RUBY, selector("Order#made", "second", "binding.local_variables"), selector("Order.find", "self", "id"),
      #{ORDER}
      only = Object.new
      def only.alone(word); word; end
      STEP = -> { Order.new(1).made(2, 3); Order.find("x"); only.alone(:y); [5].each { |n| Order.find(n) } }
    RUBY
                  selector("alone", "word"))
    assert_equal [["made", "3", "[:first, :second]"], ["find", "Order", '"x"'], ["alone", ":y"], %w[find Order 5]], found
  end

  def test_methods_written_in_c
    found = shown(<<~RUBY, selector("String#upcase", "self", "length", "word", "__source__", "String"), c_calls: true)
      word = "abc"
      STEP = -> { word.upcase }
    RUBY
    name, itself, length, local, source, constant = found.first
    assert_equal ["upcase", '"abc"', "3", '"-e:3"', "String"], [name, itself, length, source, constant]
    assert_match(/\A\(NameError: undefined local variable or method #{quoted("word")} for /, local)
  end

  # Callers of Ruby methods, of define_method's, and of C methods, without the agent's frames.
  def test_who_calls
    calls = ["caller.map { |place| place[/:(\\d+):/, 1] }.first(2)", "caller_locations.first(2).map(&:lineno)"]
    found = shown(<<~RUBY, *%w[take made String#upcase].map { |name| selector(name, *calls) }, c_calls: true)
      def take; end
      define_method(:made) { 1 }
      def two
        take
        made; "a".upcase
      end
      STEP = -> {
        two
      }
    RUBY
    first, second = [%w[5 9], %w[6 9]].map { |lines| [lines.inspect, lines.map(&:to_i).inspect] }
    assert_equal [["take", *first], ["made", *second], ["upcase", *second]], found
  end

  # A method of the program with this name takes precedence.
  def test_callers_of_its_own
    found = shown(<<~RUBY, selector("ring", "caller", "caller_locations.size > 1"), selector("take", "caller"), selector("go", "caller"))
      class Phone; def caller; "Ann"; end; def ring; end; end
      class Bare < BasicObject; def go; end; end
      def take(caller); caller; end
      STEP = -> { Phone.new.ring; raise "wrong" unless take("Bob") == "Bob"; Bare.new.go }
    RUBY
    assert_equal [["ring", '"Ann"', "true"], ["take", '"Bob"']], found.first(2)
    assert_match(/\A\(NameError: undefined local variable or method #{quoted("caller")} for /, found.last.last)
  end

  def test_the_first_selector_with_expressions_counts
    program = "#{ORDER}STEP = -> { Order.find(1); Order.new(2) }"
    found = shown(program, selector("Order.find"), selector("find", "id"), selector("Order.find", "self"), selector("initialize"))
    assert_equal [%w[find 1], ["initialize"]], found
  end

  def test_what_raises
    found = shown(<<~RUBY, selector("go", "self", "nope", "raise Exception, %(a\\nb)", "throw :out", "return 1", "exit", "raise Odd", "1"))
      class Odd < StandardError; def message; raise "no"; end; end
      class Bad; def inspect; raise "no inspect"; end; def go; :gone; end; end
      STEP = -> { raise "left" unless catch(:out) { Bad.new.go } == :gone }
    RUBY
    name, itself, nope, *rest = found.first
    assert_equal ["go", "(RuntimeError: no inspect)"], [name, itself]
    # The error's message contains the object's inspect, which raises.
    assert_match(/\A\(NameError/, nope)
    left = "(left by throw, break or return)"
    assert_equal ["(Exception: a)", left, left, "(SystemExit: exit)", "(Odd)", "1"], rest
  end

  # A recursion that fits the stack untraced also fits it traced.
  def test_near_the_end_of_the_stack
    found = shown(<<~RUBY, selector("mark", "self.to_s + '1'", "n"), max_streams: 8)
      def mark(n); n; end
      def deep(n); n.zero? ? mark(7) : deep(n - 1) + 0; end
      def fits?(n); Thread.new { begin; deep(n) == 7; rescue SystemStackError; false; end }.value; end
      MOST = (100..1_000_000).bsearch { |n| !fits?(n) } - 1
      STEP = -> { (1..40).each { |less| raise "wrong" unless fits?(MOST - less) } }
    RUBY
    assert_equal 40, found.size
    whole, others = found.map { |_, *texts| texts }.partition { |texts| texts == ['"main1"', "7"] }
    refute_empty whole
    assert_includes others, [3]
    error = "(SystemStackError: stack level too deep)"
    assert_empty others.flatten.uniq - [3, '"main1"', "7", error, "(SystemStackError)"]
  end

  # It is reported like any error of an expression.
  def test_an_expression_that_needs_more_stack_than_there_is
    found = shown(<<~RUBY, selector("take", "endless", "n"))
      def take(n); n; end
      def endless; endless + 1; end
      STEP = -> { take(1) }
    RUBY
    assert_equal [["take", "(SystemStackError: stack level too deep)", "1"]], found
  end

  def test_where_there_is_no_memory
    target = target("def take(n); n; end\nSTEP = -> { raise 'wrong' unless take(1) == 1 }")
    client = connect(target)
    code = "verbose, $VERBOSE = $VERBOSE, nil; def (Tracepoint::Agent::Expressions).packed(*); raise NoMemoryError; end"
    client.call("eval", code: "#{code}; $VERBOSE = verbose")
    memory = client.arm(mode: "ring", select: selector("take", "n"))
    target.step
    assert_equal [["take", 4]], values(client, memory)
  end

  def test_objects_that_have_nothing
    found = shown(<<~RUBY, selector("Bare#go", "self", "__id__.class", "@set"))
      class Bare < BasicObject; def initialize; @set = 1; end; def go; end; end
      STEP = -> { Bare.new.go }
    RUBY
    assert_match(/\A\(NoMethodError: undefined method #{quoted("inspect")} for /, found.first[1])
    assert_equal %w[Integer 1], found.first[2..]
  end

  def test_long_values_are_cut
    found = shown(<<~RUBY, selector("take", "a", "b", "c"))
      def take(a, b, c); end
      STEP = -> { take("x" * 100_000, "\\u00e9" * 3000, 1) }
    RUBY
    _, first, second, third = found.first
    assert_equal ["\u2026", "\u2026", "1"], [first[-1], second[-1], third]
    assert_operator first.bytesize + second.bytesize, :<=, 999
    assert_operator first.bytesize + second.bytesize, :>, 990
    assert second.valid_encoding?
  end

  def test_bytes_and_encodings
    found = shown(<<~RUBY, selector("take", "a", "b", "c"))
      class Odd; def inspect; "\\xff\\e[1m".b; end; end
      class Wide; def inspect; "wide\\u00e9".encode("UTF-16LE"); end; end
      class Other; def inspect; nil; end; end
      def take(a, b, c); end
      STEP = -> { take(Odd.new, Wide.new, Other.new) }
    RUBY
    assert_equal ["take", "\uFFFD\e[1m", "wide\u00e9", ""], found.first
  end

  # After the third time, evaluation stops.
  def test_what_never_ends
    found = shown(<<~RUBY, selector("take", "n", "loop {}"), limit_ms: 50)
      def take(n); n; end
      STEP = -> { raise "wrong" unless Array.new(5) { |n| take(n) } == [0, 1, 2, 3, 4] }
    RUBY
    late = "(took longer than 50 ms)"
    assert_equal [["take", "0", late], ["take", "1", late], ["take", "2", late], ["take", 1], ["take", 1]], found
  end

  # Expressions that resist the limit. The program never sees the exception that ends them.
  def test_what_does_not_want_to_end
    found = shown(<<~RUBY, *%w[a b c d e].map { |name| selector("take_#{name}", RESISTING[name]) }, limit_ms: 10)
      LOCK = Mutex.new
      Thread.new { LOCK.lock; sleep }
      Thread.pass until LOCK.locked?
      %w[a b c d e].each { |name| eval("def take_\#{name}; 1; end") }
      STEP = -> {
        take_a; take_b; take_d
        Thread.handle_interrupt(Exception => :never) { take_c; take_e; 10_000.times { [] } }
        10_000.times { [] }
      }
    RUBY
    assert_equal %w[take_a take_b take_d take_c take_e], found.map(&:first)
    assert_equal ["(took longer than 10 ms)"], found.map(&:last).uniq - %w[7 nil]
  end
  RESISTING = {
    "a" => "begin; sleep; rescue Exception; sleep; end",
    "b" => "3.times { begin; loop {}; rescue Exception; end }; 7",
    "c" => "begin; loop {}; ensure; loop {}; end",
    "d" => "LOCK.synchronize { 1 }",
    "e" => "Thread.handle_interrupt(Object => :never) { ends = Process.clock_gettime(1) + 0.03; 0 while Process.clock_gettime(1) < ends }"
  }.freeze

  # Meanwhile, an exception from outside reaches the program, not the expression.
  def test_what_other_threads_send
    found = shown(<<~RUBY, selector("take", "$inside << 1; sleep 0.05; n"), limit_ms: 60_000)
      require "timeout"
      $inside = Queue.new
      $wrong = false
      def take(n); n; end
      STEP = -> {
        killed = Thread.new { take(1); $wrong = true; sleep }
        $inside.pop
        killed.kill.join
        raised = Thread.new { begin; take(2); sleep; rescue IOError; :io; end }
        $inside.pop
        raised.raise(IOError)
        timed = begin; Timeout.timeout(0.01) { take(3); sleep }; rescue Timeout::Error; :timed; end
        raise "wrong" if $wrong || raised.value != :io || timed != :timed
      }
    RUBY
    # A call whose evaluation was left by an exception has no values.
    assert_equal [%w[take], %w[take], %w[take]], found.map { |name, *| [name] }
  end

  # Timeouts within an expression end its waiting, and never reach the program.
  def test_timeouts_of_its_own
    require "timeout"
    found = shown(<<~RUBY, selector("take", "patient()", "n"), limit_ms: 200)
      require "timeout"
      def patient; Timeout.timeout(0.01) { sleep }; rescue Timeout::Error; :late; end
      def take(n); n; end
      STEP = -> { 2.times { |n| take(n) }; sleep 0.05 }
    RUBY
    late = "(took longer than 200 ms)"
    values = defined?(Timeout::ExitException) ? [%w[:late 0], %w[:late 1]] : [[late, late]] * 2
    assert_equal values, found.map { |_, *each| each }
  end

  # They must end with the program.
  def test_threads_that_it_begins
    found = shown(<<~RUBY, selector("take", "$made = Thread.new { sleep }; n"), limit_ms: 60_000)
      def take(n); n; end
      STEP = -> { take(1); raise "goes on" unless $made.kill.join(30) }
    RUBY
    assert_equal [%w[take 1]], found
  end

  def test_signals_reach_the_program
    shown(<<~RUBY, selector("take", "Process.kill(:INT, $$); sleep 0.5; n"), limit_ms: 60_000) do |target|
      def take(n); n; end
      STEP = -> {
        begin; take(1); raise "not interrupted"; rescue Interrupt; end
        begin; trap(:INT) { take_trapped(1) }; Process.kill(:INT, $$); sleep 0.01; ensure trap(:INT, "DEFAULT"); end
      }
      def take_trapped(n); n; end
    RUBY
      target.step
    end
  end

  def test_in_a_signal_handler
    found = shown(<<~RUBY, selector("handle", "n", "Mutex.new.synchronize { 1 }"))
      def handle(n); $seen = n; end
      trap(:USR1) { handle(5) }
      STEP = -> { $seen = nil; Process.kill(:USR1, $$); sleep 0.001 until $seen }
    RUBY
    assert_equal [["handle", "5", "(ThreadError: can't be called from trap context)"]], found
  end

  def test_threads_at_once
    found = shown(<<~RUBY, selector("take", "Thread.pass; n"), offsets: nil)
      def take(n); n; end
      STEP = -> { raise "wrong" unless Array.new(8) { |i| Thread.new { Array.new(50) { |n| take(50 * i + n) } } }.flat_map(&:value) == (0...400).to_a }
    RUBY
    assert_equal Array.new(400) { |n| ["take", n.to_s] }, found.sort_by { |_, value| value.to_i }
  end

  FIBERS = <<~RUBY
    def take(n); n; end
    def leave; :left; end
    def leaf; :leaf; end
    $other = Fiber.new { loop { leaf; Fiber.yield(8) } }
    def busy; finish = Process.clock_gettime(1) + 0.05; nil while Process.clock_gettime(1) < finish; end
    STEP = -> {
      raise "wrong" unless take(1) == 1
      fiber = Fiber.new { leave }
      first = fiber.resume
      raise "wrong" unless [:away, :left].include?(first)
      busy # nothing ends this, although the evaluation exceeds its limit
      raise "wrong" if first == :away && fiber.resume(3) != :left
      Fiber.new { leave }.resume
      busy
      GC.start
      raise "wrong" unless take(2) == 2
    }
  RUBY

  # It switches to another fiber, which returns, or to the enclosing one, which need not.
  def test_other_fibers
    found = shown(FIBERS, selector("take", "n", "$other.resume"), selector("leave", "Fiber.yield(:away)"), selector("leaf"), limit_ms: 10)
    taken, left = %w[take leave].map { |name| found.select { |entry| entry.first == name }.map { |entry| entry.drop(1) } }
    if RUBY_VERSION < "3.0" # which forbids it in a hook
      assert_equal [2, 2], [taken, left].map { |values| values.count { |value| value.last.start_with?("(FiberError: ") } }
    else
      assert_equal [[%w[1 8], %w[2 8]], [%w[3]]], [taken, left]
      assert_equal 2, found.count(["leaf"])
    end
  end

  # They keep neither places that others need, nor their threads.
  def test_fibers_that_are_dropped_in_the_middle
    target = target(<<~RUBY)
      def take(n); n; end
      def last(n); n; end
      dropped = -> { Fiber.new { take(1) }.resume }
      STEP = -> {
        300.times { dropped.call }
        100.times { Thread.new { dropped.call }.join }
        GC.start
        last(ObjectSpace.each_object(Thread).count < 50)
      }
    RUBY
    client = connect(target)
    select = [*selector("take", "Fiber.yield"), *selector("last", "n")]
    2.times do
      memory = client.arm(mode: "ring", select: select, offsets: OFFSETS, max_streams: 16, ring_records: 16_384)
      target.step
      assert_equal([%w[last true]], values(client, memory).select { |name, *| name == "last" })
      client.call("disarm")
    end
  end

  # A fiber that it leaves with `Fiber.yield` resumes in the middle of another evaluation.
  def test_fibers_that_come_back_into_an_evaluation
    target = target(<<~RUBY)
      def take(n); n; end
      def leaf; :leaf; end
      def busy; finish = Process.clock_gettime(1) + 0.2; nil while Process.clock_gettime(1) < finish; end
      STEP = -> {
        $other = Fiber.new { leaf }
        raise "wrong" unless take(1) == 1
        busy # exceeding the limit there does not end this
      }
    RUBY
    client = connect(target)
    select = [*selector("take", "$other.resume"), *selector("leaf", "Fiber.yield"), *selector("busy")]
    client.arm(mode: "ring", select: select, offsets: OFFSETS, limit_ms: 20)
    2.times { target.step }
  end

  def test_fork_inside
    found = shown(<<~RUBY, selector("take", "pid = fork; pid ? Process.wait2(pid)[1].exitstatus : (take(5); 2)"), limit_ms: 60_000)
      $parent = $$
      def take(n); n; end
      STEP = -> {
        take(1)
        exit!(take(3)) if $$ != $parent
      }
    RUBY
    assert_equal [%w[take 3]], found
  end

  def test_disarmed_in_the_middle
    target = target(<<~RUBY)
      $inside = Queue.new
      def take(n); n; end
      STEP = -> { raise "wrong" unless take(1) == 1 }
    RUBY
    [false, true].each do |leaves|
      client = connect(target)
      eventually { armed(client, "$inside << 1; loop {}") }
      watcher = connect(target)
      target.begin_step
      watcher.call("eval", code: "$inside.pop")
      leaves ? client.close : client.call("disarm")
      target.end_step
      # The next arming is not affected.
      again = connect(target)
      memory = eventually { armed(again, "n") }
      target.step
      assert_equal [%w[take 1]], values(again, memory)
      [client, watcher, again].each { |each| each.close unless each.socket.closed? }
    end
    assert_still(target)
  end

  # Return nil while the previous arming is still in effect.
  def armed(client, expression)
    client.arm(mode: "ring", select: selector("take", expression), limit_ms: 60_000)
  rescue AgentClient::Refused => e
    raise unless e.code == "busy"
  end

  # The watching thread ends together with its task.
  def assert_still(target)
    client = connect(target)
    eventually { client.call("eval", code: "Thread.list.size")["value"] == "4" }
  end

  def test_slow_calls_only
    target = target("def take(n); end\nSTEP = -> { 3.times { |n| take(n) } }")
    found = [1, 3_600_000_000_000].map do |threshold|
      client = connect(target)
      memory = client.arm(mode: "slow", threshold_ns: threshold, select: selector("take", "n"))
      target.step
      values(client, memory).tap { client.call("disarm") }
    end
    assert_equal [[%w[take 0], %w[take 1], %w[take 2]], []], found
  end

  # Either all values are written or none, and the missing ones are counted.
  def test_a_ring_without_room
    target = target("def take(n); end\nSTEP = -> { 100.times { |n| take('x' * 400) } }")
    client = connect(target)
    memory = client.arm(mode: "ring", ring_records: 256, select: selector("take", "n"))
    target.step
    found = values(client, memory)
    with, without = found.partition { |_, text| text }
    assert_equal [402], with.map { |_, text| text.bytesize }.uniq
    status = client.call("status")
    assert_operator status["no_values"], :>=, without.size
    assert_operator with.size, :>, 5
  end

  # Without a watcher, nothing would end an endless expression.
  def test_where_no_thread_can_be_made
    target = target("def take(n); end\nSTEP = -> { take(1) }")
    client = connect(target)
    refuse = "def (Tracepoint::Agent::Expressions).watch; raise ThreadError, 'no more threads'; end"
    client.call("eval", code: "verbose, $VERBOSE = $VERBOSE, nil; #{refuse}; $VERBOSE = verbose")
    error = assert_raises(AgentClient::Refused) { client.arm(mode: "ring", select: selector("take", "n")) }
    assert_equal ["system", "no more threads"], error.reply.values_at("code", "message")
    client.arm(mode: "ring")
    target.step
  end

  def test_what_is_refused
    client = connect(target)
    { ["1 +"] => /the expression "1 \+" is not valid Ruby: ./, ["1) + (2"] => /is not valid Ruby/,
      ["yield"] => /is not valid Ruby/, ["x"] * 17 => /select/,
      ["x" * 1025] => /select/, [1] => /select/, [""] => /select/, "x" => /select/ }.each do |expressions, message|
      refused = assert_raises(AgentClient::Refused) do
        client.arm(mode: "ring", select: [{ owner: nil, kind: nil, name: "a", expressions: expressions }])
      end
      assert_equal "argument", refused.code
      assert_match message, refused.message
    end
    error = assert_raises(AgentClient::Refused) { client.arm(mode: "table", select: selector("a", "b")) }
    assert_match(/modes ring and slow/, error.message)
    [0, 60_001, "1"].each { |limit| assert_raises(AgentClient::Refused) { client.arm(mode: "ring", limit_ms: limit) } }
  end
end
