# frozen_string_literal: true

require "test_helper"
require "net/http"
require "tracepoint/testing"

# Spans of methods: which methods, their names, the interaction with other changes of methods,
# and how they are restored.
class MethodsTest < Minitest::Test
  module Shop
    class Till
      extend Tracepoint::Methods

      def pay!(cents, currency: "EUR")
        [cents, currency]
      end
      trace :pay!, args: { cents: Integer, currency: String }

      trace_class_method def self.open(name)
        name
      end

      private trace def secret?
        true
      end

      attr_reader :name

      def untouched; end
    end
  end

  def test_names
    spans = Tracepoint::Provider["methods_test_shop_till"].probes.map(&:to_s)
    assert_equal ["methods_test_shop_till:pay_bang(cents: Integer, currency: String)", "methods_test_shop_till:self_open()",
                  "methods_test_shop_till:secret_p()"], spans
    assert_equal [:secret?], Shop::Till.private_instance_methods(false) - hidden(Shop::Till)
  end

  def test_arguments
    values = lambda do |*arguments|
      tapping(span("methods_test_shop_till:pay_bang")) do |first, second|
        Shop::Till.new.pay!(*arguments.first(1), **arguments.fetch(1, {}))
        assert_equal 0, second.value(1, Integer)
        return [first.value(0, Integer), first.value(1, String)]
      end
    end
    assert_equal [5, nil], values.call(5)
    assert_equal [6, "USD"], values.call(6, { currency: "USD" })
  end

  def test_rule_of_names
    kind = fresh do
      def pay=(_); end
      def +(other); end
      def -@; end
      def [](_); end
      def []=(_, _); end
      def ==(other); end
      def !; end
      def `(_); end
    end
    kind.trace_all
    assert_equal %i[op_aref op_aset op_backtick op_eq op_not op_plus op_uminus pay_set], spans_of(kind).sort
  end

  def test_words_in_a_class_name
    kind = Class.new { def m; end }
    self.class.const_set(:HTTPServer2Go, kind)
    Tracepoint::Methods.trace(kind, :m)
    assert span("methods_test_http_server2_go:m")
  end

  def test_as
    kind = Class.new { def m; end }
    name = unique
    Tracepoint::Methods.trace(kind, :m, as: "#{name}:other")
    assert span("#{name}:other")
    error = assert_raises(Tracepoint::DefinitionError) { Tracepoint::Methods.trace(Class.new { def m; end }, :m) }
    assert_match(/has no name: set one with as:/, error.message)
    assert_raises(ArgumentError) { Tracepoint::Methods.trace(kind, :m, :m, as: :x) }
  end

  def test_collisions
    kind = fresh do
      def pay!; end
      def pay_bang; end
      def mine; end
    end
    kind.trace(:pay!)
    error = assert_raises(Tracepoint::DefinitionError) { kind.trace(:pay_bang) }
    provider = spans_of(kind, &:provider).first
    assert_equal "#{kind}#pay_bang cannot be #{provider}:pay_bang: #{kind}#pay! has that name; choose another with as:", error.message
    Tracepoint.define_span(:mine, provider: provider.to_s)
    assert_raises(Tracepoint::DefinitionError) { kind.trace(:mine) }
    kind.trace(:mine, as: :other)
    kind.untrace(:pay!)
    assert_raises(Tracepoint::DefinitionError) { kind.trace(:pay_bang) }
  end

  # Ruby calls method_added before anything else can change the method.
  def test_visibility_is_right_at_each_moment
    kind = fresh do
      def open; end
      protected def guarded; end
      private def secret; end
    end
    kind.trace(:open, :guarded, :secret)
    seen = []
    kind.define_singleton_method(:method_added) do |name|
      seen << [name, %i[public protected private].find { |it| __send__(:"#{it}_method_defined?", name) }]
    end
    kind.untrace
    assert_equal [%i[guarded protected], %i[open public], %i[secret private]], seen.sort
    assert_equal 3, (kind.private_instance_methods(false) & hidden(kind)).size
  end

  def test_methods_that_ruby_calls
    kind = fresh do
      def initialize(a); super(); @a = a; end
      def method_missing(name, *arguments); name == :gone ? [@a, *arguments] : super; end
      def respond_to_missing?(name, all = false); name == :gone || super; end
      def ==(other); other.is_a?(self.class); end
      def to_s; "text"; end
      def coerce(number); [number, 2]; end
      def each; yield 1; yield 2; end
      include Enumerable
    end
    kind.trace(:initialize, :method_missing, :respond_to_missing?, :==, :to_s, :coerce, :each)
    assert_includes kind.private_instance_methods(false), :initialize
    object = kind.new(5)
    assert_equal [5, 6], object.gone(6)
    assert_respond_to object, :gone
    assert_equal [true, "text", 3, [1, 2], 1], [object == kind.new(1), object.to_s, 1 + object, object.to_a, object.each_entry.first]
    assert_raises(NoMethodError) { object.absent }
  end

  def test_structs
    struct = Struct.new(:a, :b) { def sum; a + b; end }
    self.class.const_set(unique("Struct"), struct)
    Tracepoint::Methods.trace_all(struct)
    one = struct.new(1, 2)
    one.a = 5
    assert_equal 7, one.sum
    Tracepoint::Methods.untrace(struct)
    assert_equal 7, one.sum
  end

  def test_one_span_a_method
    kind = fresh { def m; end }
    kind.trace(:m)
    error = assert_raises(Tracepoint::DefinitionError) { kind.trace(:m, as: :other) }
    assert_match(/#m is already traced as .*:m: untrace it first/, error.message)
  end

  def test_mistakes
    assert_raises(NameError) { Shop::Till.trace(:absent) }
    error = assert_raises(ArgumentError) { Shop::Till.trace(:untouched, args: { cents: Integer }) }
    assert_equal "no argument cents (there are: )", error.message
    assert_raises(Tracepoint::DefinitionError) { Shop::Till.trace(:pay!, args: { cents: String }) }
    error = assert_raises(ArgumentError) { Shop::Till.trace(:open) }
    assert_match(/trace_class_method :open/, error.message)
    [[:cents], nil, Integer].each do |args|
      error = assert_raises(ArgumentError) { Shop::Till.trace(:untouched, args: args) }
      assert_equal "args: must be a Hash of argument names to types, such as {cents: Integer}, not #{args.inspect}", error.message
    end
    odd = fresh { define_method("a b") { 1 } }
    assert_raises(Tracepoint::DefinitionError) { odd.trace("a b", as: :odd) }
  end

  def test_trace_all_leaves_out_readers_and_what_comes_later
    kind = fresh do
      attr_accessor :name

      def a; end
      def b; end

      private

      def c; end
    end
    assert_equal %i[a b], kind.trace_all.sort
    kind.class_eval { def d; end }
    assert_equal %i[a b], spans_of(kind).sort
    assert_equal %i[a b], kind.untrace.sort
    assert_equal [], kind.untrace
  end

  def test_twice_is_once
    kind = fresh { def m; end }
    kind.trace(:m)
    kind.trace(:m)
    assert_equal 1, hits(kind) { kind.new.m }
  end

  def test_undone
    kind = fresh { def m; :m; end }
    before = kind.instance_method(:m)
    kind.trace(:m)
    assert_equal 1, hits(kind) { kind.new.m }
    assert_equal [:m], kind.untrace(:m)
    assert_equal 0, hits(kind) { kind.new.m }
    assert_equal before, kind.instance_method(:m) if Tracepoint.supported?
    kind.trace(:m)
    assert_equal 1, hits(kind) { kind.new.m }
    assert_equal 1, hidden(kind).size
    kind.untrace
    kind.class_eval { def m; :other; end }
    kind.trace(:m)
    assert_equal 1, hits(kind) { assert_equal :other, kind.new.m }
  end

  def test_a_method_that_is_not_there_is_not_undone
    kind = fresh do
      def m; end
      def gone; end
    end
    kind.trace(:m, :gone)
    assert_equal :typo, assert_raises(NameError) { kind.untrace(:m, :typo) }.name
    assert_equal 1, hits(kind) { kind.new.m }
    assert_equal [], kind.untrace(:to_s)
    kind.__send__(:remove_method, :gone)
    assert_equal %i[m gone], kind.untrace("m", :gone)
    assert_raises(NameError) { kind.untrace(:gone) }
    assert_raises(NameError) { kind.untrace_class_method(:m) }
  end

  def test_threads
    kind = fresh { def m(a, k: 1); [a, k, yield(2)]; end }
    done = false
    threads = Array.new(4) do |i|
      Thread.new do
        calls = 0
        until done && calls.positive?
          raise "wrong" unless kind.new.m(i, k: 3) { |x| x + calls } == [i, 3, 2 + calls]

          calls += 1
        end
      end
    end
    300.times do
      kind.trace(:m)
      kind.untrace
    end
    done = true
    threads.each(&:join)
    assert_operator hidden(kind).size, :<=, 1
  end

  def test_subclasses
    kind = fresh { def m(list); list << :base; end }
    below = Class.new(kind) { def m(list); super(list << :below); end }
    self.class.const_set(unique("Below"), below)
    kind.trace(:m)
    below.trace(:m)
    assert_equal [1, 1], [hits(kind) { below.new.m([]) }, hits(below) { below.new.m([]) }]
    assert_equal %i[below base], below.new.m([])
    assert_equal 0, hits(below) { kind.new.m([]) }
  end

  def test_inherited
    kind = fresh { def m(a, k: 1); [a, k, yield(2)]; end }
    below = Class.new(kind)
    self.class.const_set(unique("Below"), below)
    below.trace(:m)
    assert_equal 0, hits(below) { kind.new.m(1) { |x| x } }
    assert_equal 1, hits(below) { assert_equal [1, 3, 2], below.new.m(1, k: 3) { |x| x } }
    below.untrace
    refute below.method_defined?(:m, false)
  end

  def test_alias_of_an_inherited_method
    skip "Ruby 2.7 itself calls the wrong super in an alias of an alias" if RUBY_VERSION < "3.0"
    kind = fresh { def m; [:base]; end }
    middle = Class.new(kind) { def m; super + [:middle]; end }
    below = Class.new(middle) { extend Tracepoint::Methods; alias_method :other, :m }
    self.class.const_set(unique("Below"), below)
    below.trace(:other)
    assert_equal 1, hits(below) { assert_equal %i[base middle], below.new.other }
  end

  def test_modules
    helper = Module.new do
      extend Tracepoint::Methods

      def m(a); super(a) + [:helper]; end
    end
    self.class.const_set(unique("Helper"), helper)
    kind = fresh { def m(a); [a]; end }
    below = Class.new(kind) { include helper }
    helper.trace(:m)
    assert_equal 1, hits(helper) { assert_equal [1, :helper], below.new.m(1) }
    assert_equal 1, hits(helper) { Class.new(kind) { prepend helper }.new.m(1) }
  end

  def test_module_function
    helper = Module.new do
      extend Tracepoint::Methods

      def self.m; :m; end
    end
    self.class.const_set(unique("Helper"), helper)
    helper.trace_class_method(:m)
    assert_equal 1, hits(helper) { assert_equal :m, helper.m }
    assert_equal [:m], helper.untrace_class_method
  end

  def test_inherited_class_methods
    kind = fresh { def self.make; self; end }
    kind.trace_class_method(:make)
    below = Class.new(kind)
    assert_equal 1, hits(kind) { assert_same below, below.make }
  end

  def test_prepended_before
    kind = fresh { def m(a); [a]; end }
    kind.prepend(wrapping)
    kind.trace(:m)
    assert_equal 1, hits(kind) { assert_equal [:before, 1], kind.new.m(1) }
    kind.untrace
    assert_equal 0, hits(kind) { assert_equal [:before, 1], kind.new.m(1) }
  end

  def test_prepended_after
    kind = fresh { def m(a); [a]; end }
    kind.trace(:m)
    kind.prepend(wrapping)
    assert_equal 1, hits(kind) { assert_equal [:before, 1], kind.new.m(1) }
    kind.untrace
    assert_equal 0, hits(kind) { assert_equal [:before, 1], kind.new.m(1) }
  end

  def test_only_prepended
    kind = fresh { nil }
    kind.prepend(wrapping)
    error = assert_raises(NameError) { kind.trace(:m) }
    assert_match(/is prepended to #{kind}: trace it there/, error.message)
  end

  def test_alias_chain_before_and_after
    chain = proc do
      alias_method :m_without, :m
      define_method(:m) { |a| [:with, *m_without(a)] }
    end
    before = fresh { def m(a); [a]; end }
    before.class_eval(&chain)
    before.trace(:m)
    after = fresh { def m(a); [a]; end }
    after.trace(:m)
    after.class_eval(&chain)
    [before, after].each do |kind|
      assert_equal 1, hits(kind) { assert_equal [:with, 1], kind.new.m(1) }
      kind.untrace
      assert_equal [:with, 1], kind.new.m(1)
    end
  end

  def test_reloading
    name = unique("Reloaded")
    code = "class #{name}; extend Tracepoint::Methods; trace def m(a); [a, GENERATION]; end, args: {a: Integer}; end"
    load_it = lambda do |generation|
      self.class.class_eval(code.sub("GENERATION", generation.to_s), "reloaded.rb", 1)
      self.class.const_get(name)
    end
    kind = load_it.call(1)
    span = spans_of(kind, &:itself)
    assert_output(nil, /\A(\S+ warning: .*\n)*\z/) { assert_same kind, load_it.call(2) }
    assert_equal 1, hits(kind) { assert_equal [5, 2], kind.new.m(5) }
    self.class.__send__(:remove_const, name)
    again = load_it.call(3)
    refute_same kind, again
    assert_equal span, spans_of(again, &:itself)
    assert_equal 1, hits(again) { assert_equal [5, 3], again.new.m(5) }
    code = code.sub("Integer", "String")
    error = assert_raises(Tracepoint::DefinitionError) { load_it.call(4) }
    assert_match(/:m\(a: String\) cannot be .* there is a span .*:m\(a: Integer\), .* restart the program, or/, error.message)
  end

  def test_method_added
    added = []
    kind = Class.new { extend Tracepoint::Methods }
    kind.define_singleton_method(:method_added) do |name|
      added << name
      trace(name)
    end
    self.class.const_set(unique("Hooked"), kind)
    kind.class_eval { def m; 1; end }
    assert_equal 1, hits(kind) { kind.new.m }
    assert_equal [:m], added.uniq.grep_v(/__tracepoint/)
  end

  def test_odd_classes
    kind = fresh do
      def self.name; "Liar"; end
      def m; 1; end
    end
    blank = Class.new(BasicObject) { def m(*a, k: 1, &b); [a, k, b ? b.call : yield]; end }
    self.class.const_set(unique("Blank"), blank)
    Tracepoint::Methods.trace(blank, :m)
    kind.trace(:m)
    assert_equal 1, hits(blank) { assert_equal [[1], 2, 3], blank.new.m(1, k: 2) { 3 } }
    assert_equal 1, hits(kind) { kind.new.m }
  end

  def test_a_hook_that_raises
    kind = self.class.const_set(unique("Final"), Class.new { def final; 1; end })
    kind.define_singleton_method(:method_added) { |name| raise "no other #{name}" if name == :final }
    error = assert_raises(RuntimeError) { Tracepoint::Methods.trace(kind, :final) }
    assert_equal "no other final", error.message
    assert_empty Tracepoint::Methods.spans(kind)
    assert_empty Tracepoint::Methods.untrace(kind, :final)
    assert_empty(Tracepoint::Testing.capture { assert_equal 1, kind.new.final })
    assert kind.public_method_defined?(:final)
    frozen = self.class.const_set(unique("Frozen"), Class.new { def final; 2; end }.freeze)
    assert_raises(FrozenError) { Tracepoint::Methods.trace(frozen, :final) }
    assert_empty Tracepoint::Methods.spans(frozen)
    assert_equal 2, frozen.new.final
  end

  def test_methods_in_c
    kind = Class.new(Array) { extend Tracepoint::Methods }
    self.class.const_set(unique("Listed"), kind)
    kind.trace(:push, :map, :[]=, :first)
    assert_equal [2, 3], (kind.new.push(1, 2).map { |x| x + 1 })
    list = kind.new([1])
    list[0] = 7
    assert_equal [7, [7]], [list.first, list.first(1)]
  end

  # In a separate process, because the class is shared.
  def test_a_class_of_a_library
    needs_native
    output = ruby(<<~RUBY, verbose: false)
      require "net/http"
      require "socket"
      require "tracepoint"
      own = Net::HTTP.public_instance_methods(false).size
      readers = Net::HTTP.public_instance_methods(false).count { |name| (m = Net::HTTP.instance_method(name)).source_location && RubyVM::InstructionSequence.of(m).nil? }
      p Tracepoint::Methods.trace_all(Net::HTTP).size == own - readers
      Tracepoint::Methods.trace_all(Net::HTTP.singleton_class)
      server = TCPServer.new("127.0.0.1", 0)
      thread = Thread.new do
        2.times do
          client = server.accept
          nil until client.gets == "\\r\\n"
          client.write("HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\nConnection: close\\r\\n\\r\\nok")
          client.close
        end
      end
      uri = URI("http://127.0.0.1:\#{server.addr[1]}/")
      p Net::HTTP.get(uri)
      p Net::HTTP.start(uri.host, uri.port) { |http| http.request(Net::HTTP::Get.new("/")) { |answer| answer.read_body }.code }
      thread.join
      p Tracepoint::Provider["net_http"][:self_start].to_s
      Tracepoint::Methods.untrace(Net::HTTP)
      p Net::HTTP.instance_method(:request).source_location.first.end_with?("http.rb")
    RUBY
    assert_equal ["true", '"ok"', '"200"', '"net_http:self_start()"', "true"], output.split("\n")
  end

  def test_ractors
    skip "no Ractor" unless defined?(Ractor)
    needs_native
    output = ruby(<<~RUBY, verbose: false)
      require "tracepoint"
      class Till
        extend Tracepoint::Methods
        trace def pay(a, k: 2); [a, k]; end
        trace def each(a); yield a, 2; end
      end
      ractor = Ractor.new { [Till.new.pay(1), Till.new.pay(1, k: 5), Till.new.each(4) { |x, y| [x, y] }] }
      p ractor.respond_to?(:value) ? ractor.value : ractor.take
    RUBY
    assert_includes output, "[[1, 2], [1, 5], [4, 2]]"
  end

  def test_fallback
    output = ruby(<<~RUBY, env: { "TRACEPOINT_NATIVE" => "0" })
      require "tracepoint"
      class Till
        extend Tracepoint::Methods
        trace def pay(a, k: 2); [a, k]; end, args: {a: Integer}
        trace_class_method def self.open; end
      end
      p Till.new.pay(1), Tracepoint.probes.map(&:to_s), Till.instance_method(:pay).parameters, Till.untrace, Till.untrace_class_method
    RUBY
    assert_equal ["[1, 2]", '["till:pay(a: Integer)", "till:self_open()"]', "[[:req, :a], [:key, :k]]", "[:pay]", "[:open]"],
                 output.split("\n")
  end

  private

  def span(name)
    Tracepoint.probes.find { |it| "#{it.provider}:#{it.name}" == name }
  end

  # Return a new class with a name.
  def fresh(&body)
    kind = Class.new { extend Tracepoint::Methods }
    self.class.const_set(unique("Fresh"), kind)
    kind.class_eval(&body)
    kind
  end

  def wrapping
    Module.new { def m(a); [:before, *super]; end }
  end

  def spans_of(kind, &block)
    provider = kind.inspect.sub("MethodsTest::", "methods_test_").downcase.sub("::", "_").gsub(/(?<=[a-z])(?=_\d)/, "")
    Tracepoint::Provider[provider].probes.map(&(block || :name))
  end

  # Return the events of the class's only span.
  def hits(kind)
    spans = spans_of(kind, &:itself)
    tapping(spans.first) do |_, second|
      yield
      return second.hits
    end
  end

  def hidden(kind)
    kind.private_instance_methods(false).grep(/\A__tracepoint_/)
  end
end
