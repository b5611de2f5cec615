# frozen_string_literal: true

module Tracepoint
  module Agent
    # Facts about this process and its machine.
    module Facts
      module_function

      def jit
        return "yjit" if enabled?(:YJIT)
        return "zjit" if enabled?(:ZJIT)
        return "rjit" if enabled?(:RJIT)

        "mjit" if enabled?(:MJIT)
      end

      def enabled?(name)
        return false unless RubyVM.const_defined?(name, false)

        jit = RubyVM.const_get(name, false)
        jit.respond_to?(:enabled?) && jit.enabled?
      end

      def ractors
        defined?(::Ractor) ? ::Ractor.count : 1
      end

      def arch
        RbConfig::CONFIG["host_cpu"]
      end

      def version
        defined?(::Tracepoint::VERSION) ? ::Tracepoint::VERSION : nil
      end
    end
  end
end
