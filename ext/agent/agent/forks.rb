# frozen_string_literal: true

module Tracepoint
  module Agent
    # Detects forks through Ruby's methods.
    module Forks
      module Fork # 3.1 and later
        def _fork
          pid = super
          Agent.check_fork if pid.zero?
          pid
        end
      end

      module Daemon
        def daemon(*arguments)
          super.tap { Agent.check_fork }
        end
      end

      module Popen # before 3.1; since then, popen calls _fork
        def popen(*arguments, &block)
          return super.tap { Agent.check_fork } unless block

          super(*arguments) do |io|
            Agent.check_fork
            yield io
          end
        end
        ruby2_keywords(:popen) if respond_to?(:ruby2_keywords, true)
      end

      module OldFork
        def fork
          return super.tap { Agent.check_fork } unless block_given?

          super do
            Agent.check_fork
            yield
          end
        end
      end

      def self.install
        Process.singleton_class.prepend(Daemon)
        return Process.singleton_class.prepend(Fork) if Process.respond_to?(:_fork)

        [Process.singleton_class, Kernel.singleton_class].each { |owner| owner.prepend(OldFork) }
        IO.singleton_class.prepend(Popen)
        replace_kernel_fork
      end

      # Prepending to Kernel would not affect classes that already include it.
      def self.replace_kernel_fork
        Kernel.module_eval do
          alias_method :fork_without_rbtrace, :fork
          define_method(:fork) { |&block| block ? Process.fork(&block) : Process.fork }
          private :fork, :fork_without_rbtrace
        end
      end
    end
  end
end
