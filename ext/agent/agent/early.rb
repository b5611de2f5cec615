# frozen_string_literal: true

module Tracepoint
  module Agent
    # Defines the parts of socket.so that socket.rb needs, if they are missing (agent.rb).
    # They do not release the GVL, unlike IO#read_nonblock.
    module Early
      module_function

      # Load the rest of the library. An interruption would make RubyGems report a held lock.
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

      # Return whether there are data to read, or the end of the stream.
      def ready?(socket)
        return true unless socket.respond_to?(:__recv_nonblock, true)

        socket.__send__(:__recv_nonblock, 1, Socket::MSG_PEEK, nil, false) != :wait_readable
      rescue SystemCallError
        true
      end
    end
  end
end
