# frozen_string_literal: true

module Tracepoint
  class << self
    # Define an event. A repeated definition with the same types returns the same probe.
    #
    #   CHECKOUT = Tracepoint.define(:checkout, {id: Integer, sku: String}, provider: :shop)
    #
    # @overload define(name, operands = {}, provider: "ruby_app")
    #   @param name [Symbol, String] `:checkout`, or `"shop:checkout"`
    #   @param operands [Hash{Symbol => Class, Symbol}, Array] at most 12 types by
    #     name: Integer, String, Symbol, Float, or :bool; an Array of types defines
    #     operands without names
    #   @param provider [Symbol, String]
    #   @return [Probe]
    #   @raise [DefinitionError] invalid name or type, too many operands, or the name
    #     is defined with other types
    #   @raise [ArgumentError, TypeError] malformed arguments
    def define(name, *rest)
      operands, provider = Definition.parameters(:define, name, rest, %i[provider])
      Definition.event(name, operands, provider)
    end

    # Define a span: two probes, `checkout__begin` and `checkout__end`.
    #
    #   REQUEST = Tracepoint.define_span(:request, {method: String}, result: {status: Integer})
    #   REQUEST.measure("GET") { |span| span[:status] = 200 }
    #
    # @overload define_span(name, operands = {}, result: {}, provider: "ruby_app")
    #   @param name [Symbol, String] `:request`, or `"shop:request"`; at most 56
    #     characters without the provider
    #   @param operands [Hash{Symbol => Class, Symbol}, Array] at most 10, including
    #     the results
    #   @param result [Hash{Symbol => Class, Symbol}] values that become known during
    #     the span: arguments of `checkout__end` only, nil if never set
    #   @param provider [Symbol, String]
    #   @return [Span]
    #   @raise [DefinitionError] invalid name or type, too many operands, or the name
    #     is defined with other types
    #   @raise [ArgumentError, TypeError] malformed arguments
    def define_span(name, *rest)
      operands, provider = Definition.parameters(:define_span, name, rest, %i[provider result])
      Definition.span(name, operands, provider)
    end

    # Ruby 2.7 would treat a Hash of operands as keywords. This distinguishes them in
    # every version.
    ruby2_keywords :define, :define_span

    private

    # Called at the first use of an undefined name.
    # @return [Probe, Span, nil, String] nil: the limit is reached; a String: the
    #   reason why it cannot be declared
    def declare(kind, name, arguments, keywords)
      Definition.undeclared(kind, name, arguments, keywords)
    rescue StandardError => e
      raise if strict

      "undeclared #{kind == :span ? "span" : "probe"}: #{e.message[0, 200]}"
    end
  end

  # Converts a description to an entry of the registry.
  module Definition
    module_function

    # @param known [Array<Symbol>] the method's keywords
    # @return [Array(Operands, provider)]
    def parameters(method, name, rest, known)
      options = rest.last.is_a?(Hash) && Hash.ruby2_keywords_hash?(rest.last) ? rest.pop : {}
      check_options(method, name, options, rest, known)
      raise ArgumentError, "wrong number of arguments (given #{rest.size + 1}, expected 1..2)" if rest.size > 1

      [Operands.declared(rest.fetch(0, {}), options.fetch(:result, {})), options[:provider]]
    end

    # Operands without braces arrive as keywords.
    def check_options(method, name, options, rest, known)
      operands = options.reject { |keyword, _| known.include?(keyword) }
      return if operands.empty?

      message = "unknown keyword: #{operands.keys.first.inspect}"
      if rest.empty? && operands.each_value.all? { |type| type.is_a?(Module) || Operands::TYPES.key?(type) }
        others = (options.keys & known).map { |keyword| ", #{keyword}: #{options[keyword].inspect}" }.join
        message += "; put the arguments in braces: Tracepoint.#{method}(#{name.inspect}, {#{listed(operands)}}#{others})"
      end
      raise ArgumentError, message
    end
    private_class_method :check_options

    def listed(operands)
      operands.map { |operand, type| "#{operand}: #{type.inspect}" }.join(", ")
    end
    private_class_method :listed

    def event(name, operands, provider)
      define(Probe, *Names.split(name, provider), operands)
    end

    # @param method [String, nil] the Ruby name of the measured method
    def span(name, operands, provider, method = nil)
      define(Span, *Names.split(name, provider), operands, method)
    end

    # If two threads define the same name at once, the registry accepts one, and
    # returns its entry to both.
    def define(kind, provider, name, operands, method = nil)
      entry = add(kind, provider, name, operands, method)
      return Registry.declared(entry, operands.codes) if operands.same_types?(entry)

      taken(provider, name, operands, entry)
    end
    private_class_method :define

    # @return [Probe, Span, nil] nil: the limit is reached
    def undeclared(kind, name, arguments, keywords)
      add(kind == :span ? Span : Probe, *Names.split(name), Operands.inferred(arguments, keywords))
    end

    def add(kind, provider, name, operands, method = nil)
      check(kind, name, operands)
      entry = Registry.add(kind == Span, provider, name, operands.names, operands.codes, operands.labels, operands.keywords,
                           operands.results.size, method)
      return entry if entry.nil? || (entry.is_a?(kind) && entry.name.to_s == name)

      taken(provider, name, operands, entry)
    end
    private_class_method :add

    def check(kind, name, operands)
      return operands.check_count(Operands::MAX) unless kind == Span

      Names.check_span(name)
      operands.check_span
    end
    private_class_method :check

    # Raised for example after a changed definition was reloaded.
    def taken(provider, name, operands, entry)
      raise DefinitionError,
            "#{provider}:#{name}#{operands} cannot be defined: there is #{entry.is_a?(Span) ? "a span" : "a probe"} #{entry}, " \
            "which stays as it is: restart the program, or choose another name"
    end
    private_class_method :taken
  end
  private_constant :Definition
end
