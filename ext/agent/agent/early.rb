# frozen_string_literal: true

module Tracepoint
  module Agent
    # What socket.rb defines of what socket.so has: that may be there first (agent.rb).
    # Neither gives up Ruby's lock; IO's own read_nonblock does.
    module Early
      module_function

      def accept(listener)
        return listener.accept_nonblock(exception: false) if listener.respond_to?(:accept_nonblock)

        listener.__send__(:__accept_nonblock, false)
      end

      def read(socket, size)
        return socket.read_nonblock(size, exception: false) unless socket.respond_to?(:__read_nonblock, true)

        socket.__send__(:__read_nonblock, size, nil, false)
      end
    end
  end
end
