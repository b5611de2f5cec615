# frozen_string_literal: true

module Tracepoint
  # The first half of a probe's name, and all the probes that share it.
  class Provider
    # @!method name
    #   @return [Symbol]
    # @!method disable
    #   Its probes read as untraced to the program from now on, also those that
    #   are defined later. Tracers go on seeing them, and get nothing.
    #   @return [self]
    # @!method enable
    #   Undo {#disable}.
    #   @return [self]
    # @!method enabled?
    #   @return [Boolean]

    class << self
      # @return [Provider, nil] the one of that name, if it has probes
      def [](name)
        name = name.to_sym
        all.find { |provider| provider.name == name }
      end

      # @return [Array<Provider>] in the order of their first probes
      def all
        Registry.providers
      end
    end

    # @return [Array<Probe, Span>] in the order of their definition
    def probes
      Registry.entries.select { |entry| entry.provider.equal?(self) }
    end

    # @return [Probe, Span, nil] the one of that name
    def [](name)
      Registry.find("#{self.name}:#{name}")
    end

    # @return [String] its name
    def to_s
      name.to_s
    end

    # @return [String]
    def inspect
      "#<#{self.class} #{self}#{" (disabled)" unless enabled?}>"
    end

    def dup
      self
    end

    def clone(**)
      self
    end
  end
end
