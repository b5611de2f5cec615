# frozen_string_literal: true

module Tracepoint
  # Reads the arguments of a span from a framework's objects. It reads only while the span
  # is traced, and an error drops the arguments instead of breaking the program.
  # @api private
  class ArgumentReader
    # @param span [Span]
    def initialize(span)
      @span = span
      @nothing = Array.new(span.operands.size).freeze
    end

    # @yieldreturn [Array] the arguments
    # @return [Array] all nil if the span is untraced, or if the block raises or
    #   returns another number
    def read
      return @nothing unless @span.enabled?

      found = Array(yield)
      found.size == @nothing.size ? found : @nothing
    rescue StandardError
      @nothing
    end
  end
  private_constant :ArgumentReader
end
