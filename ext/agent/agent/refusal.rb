# frozen_string_literal: true

module Tracepoint
  module Agent
    # A refused request; docs/agent/protocol.md lists the codes and details.
    class Refusal < StandardError
      attr_reader :code, :details

      def initialize(code, message, details = {})
        super(message)
        @code = code
        @details = details
      end

      # A system limit forbids another thread or process.
      def self.no_thread(error)
        new("system", error.message, errno: Errno::EAGAIN::Errno)
      end

      def to_reply
        { code: code, message: message }.merge(details)
      end
    end

    # A refusal that ends the connection.
    class Broken < Refusal
      def initialize(message, code = "protocol")
        super(code, message)
      end
    end

    # The peer has disconnected.
    class Gone < StandardError; end
  end
end
