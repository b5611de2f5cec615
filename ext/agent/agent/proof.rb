# frozen_string_literal: true

module Tracepoint
  module Agent
    # A secret text for one connection, which only processes that may read this process's
    # memory can know. The digits are the coefficients of a polynomial, and the peer answers
    # with its value at the peer's pid. This reveals nothing about the value at another pid.
    # docs/agent/access.md, "The proof".
    class Proof
      MARK = "rbtrace-proof-1:"
      SIZE = 4096
      DIGITS = 30 # per coefficient
      PRIME = 2**127 - 1

      # Address of the text; nil if Strings have no fixed address (JRuby, TruffleRuby).
      attr_reader :address

      def initialize
        # Ruby keeps strings of up to 640 bytes in heap slots, which compaction moves. Longer
        # strings are allocated with malloc, and do not move while they live.
        @text = (MARK + Random.urandom((SIZE - MARK.bytesize) / 2).unpack1("H*")).freeze
        @address = [@text].pack("P").unpack1("J") if RUBY_ENGINE == "ruby"
      end

      # Return whether the process with this pid gave the right answer. The text is valid only once.
      def match?(answer, pid)
        text = @text
        @text = nil
        return false unless text && @address

        answer == format("%032x", value(text.delete_prefix(MARK), pid))
      end

      private

      def value(digits, pid)
        digits.scan(/.{#{DIGITS}}/o).inject(0) { |sum, coefficient| (sum * pid + coefficient.hex) % PRIME }
      end
    end
  end
end
