# frozen_string_literal: true

module Tracepoint
  class << self
    # @!method disable
    #   Make all probes count as untraced, including those defined later. Tracers
    #   still see the probes, but get no events. May be called at any time, from any
    #   thread, and from signal handlers. Child processes inherit the state.
    #   @return [nil]

    # @!method enable
    #   Undo {#disable}. Disabled providers stay disabled.
    #   @return [nil]

    # @!method toggle
    #   Call {#enable} if disabled, else {#disable}.
    #   @return [nil]

    # @!method disabled?
    #   @return [Boolean] whether {#disable} is in effect

    # Configure when probes may be traced. The settings take effect when the block ends.
    #
    #   Tracepoint.configure do |config|
    #     config.mode = :signal     # off, until a signal turns it on, and off again
    #     config.signal = "PROF"
    #   end
    #
    # `TRACEPOINT=on` or `TRACEPOINT=off` in the environment takes precedence.
    # @yieldparam config [Configuration::Settings]
    # @return [nil]
    # @raise [ArgumentError] unknown mode, mode :signal without a signal, or a signal
    #   that cannot be trapped. The settings then stay unchanged
    def configure(&block)
      @configuration.change(&block)
    end
  end

  # The times at which probes may be traced: always, never, or toggled by a signal.
  class Configuration
    # @!attribute mode
    #   @return [Symbol] `:on` (the default), `:off`, or `:signal`; may be set as a
    #   String and in any case
    # @!attribute signal
    #   @return [String, Symbol, Integer, nil] the signal for mode :signal
    Settings = Struct.new(:mode, :signal) do
      # @api private
      def check
        self.mode = mode.to_sym.downcase if mode.respond_to?(:to_sym)
        raise ArgumentError, "a mode is :on, :off or :signal, not #{mode.inspect}" unless %i[on off signal].include?(mode)
        raise ArgumentError, "mode :signal needs a signal: config.signal = \"PROF\"" if mode == :signal && signal.nil?
      end
    end

    # @api private
    # @param environment [String, nil] value of the variable TRACEPOINT
    def initialize(environment)
      @lock = Mutex.new
      @settings = Settings.new(:on, nil)
      @handler = nil
      mode = environment&.downcase(:ascii) # the bytes may be invalid text
      @fixed = %w[on off].include?(mode)
      return if environment.nil? || environment.empty?

      warn "tracepoint: TRACEPOINT must be on or off, not #{environment[0, 100].inspect}: it is ignored" unless @fixed
      Tracepoint.disable if mode == "off"
    end

    # @api private
    def change
      @lock.synchronize do
        wanted = @settings.dup
        yield wanted
        wanted.check
        apply(wanted) unless wanted == @settings
        @settings = wanted
      end
      nil
    end

    private

    # Trap the signal even if TRACEPOINT fixes the mode: its senders do not know that.
    def apply(wanted)
      handler = SignalHandler.new(wanted.signal) { Tracepoint.toggle unless @fixed } if wanted.mode == :signal
      @handler&.remove
      @handler = handler
      return if @fixed

      wanted.mode == :on ? Tracepoint.enable : Tracepoint.disable
    end
  end

  # Runs a block on each signal, and then the previous handler.
  # @api private
  class SignalHandler
    # @raise [ArgumentError] unknown or reserved signal
    def initialize(signal, &block)
      @signal = signal
      @block = block
      @handler = method(:call).to_proc
      # trap accepts EXIT as well, and runs its handler when the program exits.
      raise ArgumentError, "not a signal" if [0, "EXIT", "SIGEXIT"].include?(signal.is_a?(Symbol) ? signal.to_s : signal)

      @previous = trap(signal, @handler)
    rescue ArgumentError, SystemCallError => e
      raise ArgumentError, "config.signal cannot be #{signal.inspect}: #{e.message}"
    end

    # Restore the previous handler. A later handler, which may call this one, stays.
    def remove
      @block = nil
      current = trap(@signal, @handler)
      trap(@signal, current.equal?(@handler) ? @previous || "DEFAULT" : current)
    end

    private

    # A signal handler must not lock.
    def call(number)
      @block&.call
      @previous.call(number) if @previous.respond_to?(:call)
    end
  end

  @configuration = Configuration.new(ENV["TRACEPOINT"])
end
