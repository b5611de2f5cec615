# frozen_string_literal: true

module Tracepoint
  module Agent
    # A request that cannot be done; code and details as docs/agent/protocol.md has them.
    class Refusal < StandardError
      attr_reader :code, :details

      def initialize(code, message, details = {})
        super(message)
        @code = code
        @details = details
      end

      # A limit of the system forbids a further thread or process.
      def self.no_thread(error)
        new("system", error.message, errno: Errno::EAGAIN::Errno)
      end

      def to_reply
        { code: code, message: message }.merge(details)
      end
    end

    # A refusal after which the connection cannot go on.
    class Broken < Refusal
      def initialize(message, code = "protocol")
        super(code, message)
      end
    end

    # The other end is gone.
    class Gone < StandardError; end
  end
end
