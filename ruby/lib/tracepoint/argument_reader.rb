# frozen_string_literal: true

module Tracepoint
  # Reads the arguments of a framework's span from what is not ours: only while
  # someone traces the span, and an error costs the arguments, not the program.
  # @api private
  class ArgumentReader
    # @param span [Span]
    def initialize(span)
      @span = span
      @nothing = Array.new(span.operands.size).freeze
    end

    # @yieldreturn [Array] the arguments
    # @return [Array] all nil while nobody traces the span, or if the block raises
    #   or returns another number
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
