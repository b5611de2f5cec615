# frozen_string_literal: true

module Tracepoint
  class << self
    # @!method disable
    #   No probe reads as traced from now on, whoever traces it, also those that
    #   are defined later. Tracers go on seeing the probes, and get nothing. At any
    #   time, from any thread, from a signal's handler; children inherit it.
    #   @return [nil]

    # @!method enable
    #   Undo {#disable}. Providers that are disabled stay so.
    #   @return [nil]

    # @!method toggle
    #   {#disable}, or {#enable} if that was done.
    #   @return [nil]

    # @!method disabled?
    #   @return [Boolean] whether {#disable} holds

    # Say when probes may be traced. All that the block sets counts at its end.
    #
    #   Tracepoint.configure do |config|
    #     config.mode = :signal     # off, until a signal turns it on, and off again
    #     config.signal = "PROF"
    #   end
    #
    # `TRACEPOINT=on` or `TRACEPOINT=off` in the environment takes precedence.
    # @yieldparam config [Configuration::Settings]
    # @return [nil]
    # @raise [ArgumentError] no such mode, mode :signal without a signal, or one
    #   that cannot be trapped; nothing is changed then
    def configure(&block)
      @configuration.change(&block)
    end
  end

  # When probes may be traced: always, never, or as a signal says.
  class Configuration
    # @!attribute mode
    #   @return [Symbol] `:on` (by default), `:off` or `:signal`; a String and
    #   any case will do
    # @!attribute signal
    #   @return [String, Symbol, Integer, nil] for mode :signal
    Settings = Struct.new(:mode, :signal) do
      # @api private
      def check
        self.mode = mode.to_sym.downcase if mode.respond_to?(:to_sym)
        raise ArgumentError, "a mode is :on, :off or :signal, not #{mode.inspect}" unless %i[on off signal].include?(mode)
        raise ArgumentError, "mode :signal needs a signal: config.signal = \"PROF\"" if mode == :signal && signal.nil?
      end
    end

    # @api private
    # @param environment [String, nil] what the variable TRACEPOINT says
    def initialize(environment)
      @lock = Mutex.new
      @settings = Settings.new(:on, nil)
      @handler = nil
      mode = environment&.downcase(:ascii) # of bytes that are no text, too
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

    # With TRACEPOINT=on or off the signal is taken, too, and does nothing: who sends it does not know.
    def apply(wanted)
      handler = SignalHandler.new(wanted.signal) { Tracepoint.toggle unless @fixed } if wanted.mode == :signal
      @handler&.remove
      @handler = handler
      return if @fixed

      wanted.mode == :on ? Tracepoint.enable : Tracepoint.disable
    end
  end

  # Runs a block at each signal, and then the handler that was there.
  # @api private
  class SignalHandler
    # @raise [ArgumentError] no such signal, or a reserved one
    def initialize(signal, &block)
      @signal = signal
      @block = block
      @handler = method(:call).to_proc
      # trap takes it, too: what it is given runs as the program ends.
      raise ArgumentError, "it is no signal" if [0, "EXIT", "SIGEXIT"].include?(signal.is_a?(Symbol) ? signal.to_s : signal)

      @previous = trap(signal, @handler)
    rescue ArgumentError, SystemCallError => e
      raise ArgumentError, "config.signal cannot be #{signal.inspect}: #{e.message}"
    end

    # Put the handler back that was there. A later one, which may call this one, stays.
    def remove
      @block = nil
      current = trap(@signal, @handler)
      trap(@signal, current.equal?(@handler) ? @previous || "DEFAULT" : current)
    end

    private

    # As a signal's handler it can take no lock.
    def call(number)
      @block&.call
      @previous.call(number) if @previous.respond_to?(:call)
    end
  end

  @configuration = Configuration.new(ENV["TRACEPOINT"])
end
