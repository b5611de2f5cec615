# frozen_string_literal: true

module Tracepoint
  module Agent
    # Replaces $stdout and $stderr during an evaluation: the evaluating thread writes to a
    # pipe, all others to the original. Every other method is forwarded to the original, so
    # `dup` returns a copy of the file.
    class Redirect < BasicObject
      LOCK = ::Mutex.new
      @users = {}
      @pairs = nil

      class << self
        # Redirect the calling thread's output to these, whenever output is redirected.
        def claim(out, err)
          ::Thread.current.thread_variable_set(:rbtrace_stdout, out)
          ::Thread.current.thread_variable_set(:rbtrace_stderr, err)
        end

        # A thread that is killed on entry never becomes a user, or is removed right away.
        def around
          mine = ::Object.new
          LOCK.synchronize do
            @users[mine] = true
            install if @users.size == 1
          end
          yield
        ensure
          LOCK.synchronize { remove if @users.delete(mine) && @users.empty? }
        end

        # In a child, whose threads need no redirection.
        def forget
          remove_const(:LOCK)
          const_set(:LOCK, ::Mutex.new)
          @users = {}
          remove
        end

        private

        def install
          @pairs = [[$stdout, new($stdout, :rbtrace_stdout)], [$stderr, new($stderr, :rbtrace_stderr)]]
          $stdout, $stderr = @pairs.map(&:last)
        end

        # Keep a value that the program has assigned in the meantime.
        def remove
          (out, our_out), (err, our_err) = @pairs
          $stdout = out if our_out.equal?($stdout)
          $stderr = err if our_err.equal?($stderr)
          @pairs = nil
        end
      end

      def initialize(original, key)
        @original = original
        @key = key
      end

      def write(*arguments)
        target.write(*arguments)
      end

      def ==(other)
        equal?(other) || target == other
      end

      def respond_to?(name, private_too = false)
        target.respond_to?(name, private_too)
      end

      def respond_to_missing?(name, private_too)
        target.respond_to?(name, private_too)
      end

      def method_missing(name, *arguments, &block)
        target.public_send(name, *arguments, &block)
      end
      ruby2_keywords(:method_missing) if respond_to?(:ruby2_keywords, true)

      private

      def target
        ::Thread.current.thread_variable_get(@key) || @original
      end
    end
  end
end
