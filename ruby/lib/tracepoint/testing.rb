# frozen_string_literal: true

require "tracepoint"
require_relative "testing/event"
require_relative "testing/pattern"
require_relative "testing/fallback" unless Tracepoint.supported?

module Tracepoint
  # For a program's tests: captures the events of its probes as a tracer would see them,
  # without a tracer and without privileges.
  #
  #   require "tracepoint/testing"
  #
  #   events = Tracepoint::Testing.capture { till.pay(7) }
  #   events.map(&:to_s)     # => ["shop:pay__begin(cents: 7)", "shop:pay__end(…)"]
  #
  # {Assertions} are for minitest, {Matchers} are for RSpec.
  module Testing
    # Records all events from its creation until it is closed.
    # @api private
    class Capture
      def initialize
        @mark = Registry.begin_capture
      end

      # @return [Array<Event>] so far
      def events
        Registry.captured(@mark).map { |entry, role, values| Event.new(entry, role, values) }
      end

      def close
        Registry.end_capture
      end
    end

    # Run the block, and capture the events of all probes, which count as traced. This
    # includes all threads, fibers, and Ractors of the process. Captures may nest. Outside
    # of captures, probes cost no more than usual.
    # @yield the code to observe
    # @return [Array<Event>] the events, in order
    def self.capture
      capture = Capture.new
      begin
        yield
        capture.events
      ensure
        capture.close
      end
    end

    # Assertions for minitest. Without a block, they use all events of the test so far.
    #
    #   class TillTest < Minitest::Test
    #     include Tracepoint::Testing::Assertions
    #
    #     def test_pay
    #       assert_fired("shop:pay", cents: 7) { till.pay(7) }
    #     end
    #   end
    module Assertions
      # Start capturing. minitest calls this before each test.
      def before_setup
        @tracepoint_capture = Capture.new
        super
      end

      # Stop capturing.
      # @see before_setup
      def after_teardown
        super
      ensure
        @tracepoint_capture.close
      end

      # Fail unless matching events were fired.
      # @param name [Symbol, String, Probe, Span] as for {Pattern}
      # @param times [Integer, nil] exact number of events; nil: at least one
      # @param arguments [Hash] compared with `===`, so a Range or a Regexp works
      # @yield the code that fires the events
      # @return [Array<Event>] the matching events
      def assert_fired(name, times: nil, **arguments, &block)
        pattern = Pattern.new(name, arguments)
        events = fired(&block)
        found = pattern.select(events)
        said = times ? "fired #{found.size} times, not #{times}" : "did not fire"
        assert times ? found.size == times : !found.empty?, "#{pattern} #{said}. #{pattern.report(events)}"
        found
      end

      # Fail if a matching event was fired.
      # @param name (see #assert_fired)
      # @param arguments (see #assert_fired)
      # @yield the code that must not fire it
      # @return [nil]
      def refute_fired(name, **arguments, &block)
        pattern = Pattern.new(name, arguments)
        found = pattern.select(fired(&block))
        refute !found.empty?, "#{pattern} fired. #{pattern.report(found)}"
        nil
      end

      private

      def fired(&block)
        block ? Testing.capture(&block) : @tracepoint_capture.events
      end
    end

    # Matchers for RSpec.
    #
    #   RSpec.configure { |config| config.include Tracepoint::Testing::Matchers }
    #
    #   expect { till.pay(7) }.to fire("shop:pay").with(cents: 7).times(1)
    module Matchers
      # @param name (see Assertions#assert_fired)
      # @return [Fire]
      def fire(name)
        Fire.new(name)
      end
    end

    # The matcher behind {Matchers#fire}.
    class Fire
      def initialize(name)
        @name = name
        @pattern = Pattern.new(name)
        @number = nil
      end

      # Match events with these arguments only.
      # @param arguments (see Assertions#assert_fired)
      # @return [self]
      def with(**arguments)
        @pattern = Pattern.new(@name, arguments)
        self
      end

      # Require an exact number of events.
      # @param number [Integer]
      # @return [self]
      def times(number)
        @number = number
        self
      end

      # @param block [Proc] the block given to `expect`
      # @return [Boolean]
      def matches?(block)
        @events = Testing.capture(&block)
        count = @pattern.select(@events).size
        @number ? count == @number : count.positive?
      end

      # @return [true]
      def supports_block_expectations?
        true
      end

      # @return [String]
      def description
        "fire #{@pattern}#{" #{@number} times" if @number}"
      end

      # @return [String]
      def failure_message
        "expected the block to #{description}. #{@pattern.report(@events)}"
      end

      # @return [String]
      def failure_message_when_negated
        "expected the block not to #{description}. #{@pattern.report(@events)}"
      end
    end
  end
end
