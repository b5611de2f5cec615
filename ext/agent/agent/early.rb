# frozen_string_literal: true

module Tracepoint
  module Agent
    # Defines those parts of socket.so that socket.rb needs, if they are missing (agent.rb).
    # None gives up the GVL; IO's own read_nonblock does.
    module Early
      module_function

      # The rest; not cut short: RubyGems would print that its lock is taken.
      def complete
        Thread.handle_interrupt(Object => :never) { require "socket" }
      end

      def accept(listener)
        return listener.accept_nonblock(exception: false) if listener.respond_to?(:accept_nonblock)

        listener.__send__(:__accept_nonblock, false)
      end

      def read(socket, size)
        return socket.read_nonblock(size, exception: false) unless socket.respond_to?(:__read_nonblock, true)

        socket.__send__(:__read_nonblock, size, nil, false)
      end

      # Is there something to read, or the end?
      def ready?(socket)
        return true unless socket.respond_to?(:__recv_nonblock, true)

        socket.__send__(:__recv_nonblock, 1, Socket::MSG_PEEK, nil, false) != :wait_readable
      rescue SystemCallError
        true
      end
    end
  end
end
