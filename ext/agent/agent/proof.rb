# frozen_string_literal: true

module Tracepoint
  module Agent
    # A text that only who may read this process's memory can know, for one connection.
    # The peer answers with a value of the polynomial that the text's digits are: it tells
    # nothing of the value for another pid. docs/agent/access.md, "The proof".
    class Proof
      MARK = "rbtrace-proof-1:"
      SIZE = 4096
      DIGITS = 30 # of a coefficient
      PRIME = 2**127 - 1

      # Address of the text; nil where a String's bytes have none (JRuby, TruffleRuby).
      attr_reader :address

      def initialize
        # Ruby keeps strings of up to 640 bytes in slots, which a compaction moves. The
        # bytes of longer ones are malloc's, and stay where they are while the string lives.
        @text = (MARK + Random.urandom((SIZE - MARK.bytesize) / 2).unpack1("H*")).freeze
        @address = [@text].pack("P").unpack1("J") if RUBY_ENGINE == "ruby"
      end

      # Is this the answer of the process with this pid? It answers once.
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
