# frozen_string_literal: true

require "singleton"
require "tracepoint"

# The interface of the gem ruby-static-tracing, for programs written for it.
#
#   require "tracepoint/static_tracing"
#
#   TICK = StaticTracing::Tracepoint.new("clock", "tick", Integer, String)
#   StaticTracing::Provider.fetch("clock").enable
#   TICK.fire(StaticTracing.nsec, "tock")
#
# As in that gem, nothing fires until tracing is enabled. Enable it with {enable!}, or
# toggle it with SIGPROF.
module StaticTracing
  class Error < StandardError
  end

  class << self
    # @return [Integer] nanoseconds of the monotonic clock
    def nsec
      Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
    end

    # @return [Boolean] whether tracing is enabled
    def enabled?
      @enabled
    end

    # Enable the probes of all providers and tracers, including later ones.
    def enable!
      @enabled = true
      Provider.enable!
    end

    # Disable the probes of all providers and tracers.
    def disable!
      @enabled = false
      Provider.disable!
    end

    # Enable or disable tracing. Takes no Ruby lock: signal handlers may call it.
    def toggle_tracing!
      enabled? ? disable! : enable!
    end

    # @yieldparam configuration [Configuration]
    def configure
      yield Configuration.instance
    end
  end
  @enabled = false

  # A namespace of probes.
  class Provider
    class ProviderMissingError < Error
    end

    # @return [String]
    attr_reader :namespace
    # @return [Hash{String => Tracepoint}]
    attr_reader :tracepoints

    @all = {}

    class << self
      # @param namespace [String, Symbol]
      # @return [Provider] the provider with this name, created if missing
      def register(namespace)
        @all[namespace.to_s] ||= new(namespace.to_s)
      end

      # @param namespace [String, Symbol]
      # @return [Provider]
      # @raise [ProviderMissingError] unknown provider
      def fetch(namespace)
        @all.fetch(namespace.to_s) { raise ProviderMissingError, "no provider #{namespace}" }
      end

      # Enable all providers, even if other threads add some meanwhile.
      def enable!
        @all.values.each(&:enable)
      end

      # Disable all providers.
      def disable!
        @all.values.each(&:disable)
      end

      # @api private
      def forget(namespace)
        @all.delete(namespace)
      end

      private :new
    end

    def initialize(namespace)
      @namespace = namespace
      @tracepoints = {}
      @enabled = StaticTracing.enabled?
    end

    # Return the probe with this name, created if missing.
    # @param types [Array<Class>] Integer or String
    # @return [Tracepoint]
    # @raise [Tracepoint::InvalidArgType] another type
    def add_tracepoint(name, *types)
      tracepoints.fetch(name.to_s) { Tracepoint.new(namespace, name, *types) }
    end

    # Enable the provider's probes.
    # @return [true]
    def enable
      @enabled = true
      settle
    end

    # Disable the provider's probes.
    # @return [true]
    def disable
      @enabled = false
      settle
    end

    def enabled?
      @enabled
    end

    # Disable the provider and forget its name. The probes stay.
    # @return [true]
    def destroy
      disable
      self.class.forget(namespace)
      true
    end

    # @return [nil] the probes are in memory, not in a file
    def path
      nil
    end

    # @api private
    # Apply the state to the gem's provider, which exists once it has a probe.
    def settle
      provider = ::Tracepoint::Provider[namespace]
      enabled? ? provider&.enable : provider&.disable
      true
    end
  end

  # A probe.
  class Tracepoint
    class TracepointMissingError < Error
    end

    class InvalidArgumentError < Error
    end

    class InvalidArgType < Error
    end

    TYPES = [Integer, String].freeze
    private_constant :TYPES

    # @return [Tracepoint]
    # @raise [TracepointMissingError, Provider::ProviderMissingError] unknown probe or
    #   provider
    def self.fetch(provider, name)
      Provider.fetch(provider).tracepoints.fetch(name.to_s) { raise TracepointMissingError, "no tracepoint #{provider}:#{name}" }
    end

    # @return [String]
    attr_reader :provider_name
    # @return [String]
    attr_reader :name
    # @return [Array<Class>]
    attr_reader :args

    # @param types [Array<Class>] Integer or String
    # @raise [InvalidArgType] another type
    def initialize(provider_name, name, *types)
      wrong = types.find { |type| !TYPES.include?(type) }
      raise InvalidArgType, "an argument is Integer or String, not #{wrong.inspect}" if wrong

      @provider_name = provider_name.to_s
      @name = name.to_s
      @args = types.freeze
      @probe = ::Tracepoint.define(@name, types, provider: @provider_name)
      Provider.register(@provider_name).tracepoints[@name] = self
      provider.settle
    end

    # @return [Provider]
    def provider
      Provider.fetch(provider_name)
    end

    # @return [Boolean] whether it is traced
    def enabled?
      @probe.enabled?
    end

    # Fire the probe, if it is traced.
    # @param values [Array<Integer, String>] one per type
    # @return [Boolean] whether it fired
    # @raise [InvalidArgumentError] the values do not match the types; traced or not
    def fire(*values)
      unless values.size == args.size && values.zip(args).all? { |value, type| type === value }
        raise InvalidArgumentError, "#{provider_name}:#{name} takes #{args.inspect}, not #{values.map(&:class).inspect}"
      end

      @probe.fire(*values)
    end
  end

  # The times at which tracing is on: always, never, or toggled by a signal (SIGPROF).
  class Configuration
    include Singleton

    module Modes
      ON = "ON"
      OFF = "OFF"
      SIGNAL = "SIGNAL"
    end

    # @return [String] a mode of {Modes}
    attr_reader :mode
    # @return [String] name of the signal
    attr_reader :signal

    def initialize
      @signal = "PROF"
      @handler = nil
      self.mode = Modes::SIGNAL
    end

    def mode=(mode)
      raise ArgumentError, "no mode #{mode.inspect}" unless [Modes::ON, Modes::OFF, Modes::SIGNAL].include?(mode)

      untrap
      @mode = mode
      case mode
      when Modes::ON then StaticTracing.enable!
      when Modes::OFF then StaticTracing.disable!
      when Modes::SIGNAL then trap_signal
      end
    end

    def signal=(signal)
      untrap
      @signal = signal
      trap_signal if mode == Modes::SIGNAL
    end

    # Trace methods with a tracer, like {Tracer.register}.
    def add_tracer(tracer, owner, *names)
      tracer.register(owner, *names)
    end

    private

    # The previous handler is called as well.
    def trap_signal
      @handler = ::Tracepoint::SignalHandler.new(signal) { StaticTracing.toggle_tracing! }
    end

    def untrap
      @handler&.remove
      @handler = nil
    end
  end

  # The gem's tracers. Their probes are enabled together with all others.
  module Tracer
    # @api private
    module Registering
      def register(owner, *names)
        super.tap do
          ::Tracepoint::Methods.spans(owner).each { |span| Provider.register(span.provider.name).settle }
        end
      end
    end
    private_constant :Registering

    %i[Latency Stack].each do |name|
      kind = Class.new(::Tracepoint::Tracer.const_get(name)) { extend Registering }
      const_set(name, kind)
    end

    # Modules to include in a class after its methods.
    module Concerns
      %i[Latency Stack].each do |name|
        const_set(name, Module.new do
          define_singleton_method(:included) do |base|
            super(base)
            Tracer.const_get(name).register(base)
          end
        end)
      end
    end
  end

  Configuration.instance
end
