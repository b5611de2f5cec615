# frozen_string_literal: true

module Tracepoint
  # The first half of a probe's name, and all probes that share it.
  class Provider
    # @!method name
    #   @return [Symbol]
    # @!method disable
    #   Make its probes count as untraced, including those defined later. Tracers still
    #   see the probes, but get no events.
    #   @return [self]
    # @!method enable
    #   Undo {#disable}.
    #   @return [self]
    # @!method enabled?
    #   @return [Boolean]

    class << self
      # @param name [Symbol, String]
      # @return [Provider, nil] the provider with this name, if it has probes
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

    # @param name [Symbol, String] name without the provider
    # @return [Probe, Span, nil] the probe or span with this name
    def [](name)
      Registry.find("#{self.name}:#{name}")
    end

    # @return [String] the provider's name
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
