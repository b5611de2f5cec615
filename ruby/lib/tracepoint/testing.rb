# frozen_string_literal: true

require "tracepoint"
require_relative "testing/event"
require_relative "testing/pattern"
require_relative "testing/fallback" unless Tracepoint.supported?

module Tracepoint
  # For a program's tests: what its probes fire, as a tracer would see it, without
  # a tracer and without rights.
  #
  #   require "tracepoint/testing"
  #
  #   events = Tracepoint::Testing.capture { till.pay(7) }
  #   events.map(&:to_s)     # => ["shop:pay__begin(cents: 7)", "shop:pay__end(…)"]
  #
  # {Assertions} are for minitest, {Matchers} for RSpec.
  module Testing
    # All that fires from its beginning until it is closed.
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

    # Run the block while all probes count as traced, by somebody who keeps what
    # they fire. That is all of the process: its threads, fibers and Ractors.
    # Captures may nest; outside of them nothing costs more than without.
    # @return [Array<Event>] in the order in which they fired
    def self.capture
      capture = Capture.new
      begin
        yield
        capture.events
      ensure
        capture.close
      end
    end

    # For minitest. Without a block they mean all that the test fired so far.
    #
    #   class TillTest < Minitest::Test
    #     include Tracepoint::Testing::Assertions
    #
    #     def test_pay
    #       assert_fired("shop:pay", cents: 7) { till.pay(7) }
    #     end
    #   end
    module Assertions
      # Begins to capture, as minitest calls it before each test.
      def before_setup
        @tracepoint_capture = Capture.new
        super
      end

      # @see before_setup
      def after_teardown
        super
      ensure
        @tracepoint_capture.close
      end

      # @param name [Symbol, String, Probe, Span] as for {Pattern}
      # @param times [Integer, nil] exact number of events; nil: at least one
      # @param arguments [Hash] compared with `===`: a Range or a Regexp will do
      # @yield what fires it
      # @return [Array<Event>] those that match
      def assert_fired(name, times: nil, **arguments, &block)
        pattern = Pattern.new(name, arguments)
        events = fired(&block)
        found = pattern.select(events)
        said = times ? "fired #{found.size} times, not #{times}" : "did not fire"
        assert times ? found.size == times : !found.empty?, "#{pattern} #{said}. #{pattern.report(events)}"
        found
      end

      # @param name (see #assert_fired)
      # @param arguments (see #assert_fired)
      # @yield what does not fire it
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

    # For RSpec.
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

    # The matcher.
    class Fire
      def initialize(name)
        @name = name
        @pattern = Pattern.new(name)
        @number = nil
      end

      # @param arguments (see Assertions#assert_fired)
      # @return [self]
      def with(**arguments)
        @pattern = Pattern.new(@name, arguments)
        self
      end

      # @param number [Integer] how often exactly
      # @return [self]
      def times(number)
        @number = number
        self
      end

      # @param block [Proc] of `expect`
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
