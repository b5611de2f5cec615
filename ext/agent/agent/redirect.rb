# frozen_string_literal: true

module Tracepoint
  module Agent
    # $stdout and $stderr while something is evaluated: a pipe for that thread, the original
    # for all others. Every other method goes to the original, so that a dup is one of the
    # file.
    class Redirect < BasicObject
      LOCK = ::Mutex.new
      @users = {}
      @pairs = nil

      class << self
        # Whatever is redirected, and when: the calling thread writes to these.
        def claim(out, err)
          ::Thread.current.thread_variable_set(:rbtrace_stdout, out)
          ::Thread.current.thread_variable_set(:rbtrace_stderr, err)
        end

        # A thread that is killed on the way in is no user, or is one for no longer than that.
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

        # In a child, whose threads have no use for it.
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

        # The program may have set one of them meanwhile: then that stays.
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
