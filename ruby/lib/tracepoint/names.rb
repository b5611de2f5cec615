# frozen_string_literal: true

module Tracepoint
  # The provider of names without a provider.
  DEFAULT_PROVIDER = "ruby_app"

  # Parses the names of probes, providers, and operands.
  module Names
    PATTERN = /\A[A-Za-z0-9_]{1,63}\z/.freeze
    # The names of a span's two probes are its name and one of these.
    SPAN_SUFFIXES = %w[__begin __end].freeze
    LONGEST_SPAN = 63 - SPAN_SUFFIXES.map(&:length).max

    module_function

    # @return [Array(String, String)] provider and name
    def split(name, provider = nil)
      text = text_of(name, "a probe's name")
      first, second = text.split(":", 2) if text.ascii_only?
      if second && provider
        raise DefinitionError, "#{text.inspect} already names its provider: leave out provider:"
      end

      [check(second ? first : provider || DEFAULT_PROVIDER, "a provider's name"),
       check(second || text, "a probe's name")]
    end

    def name?(text)
      text.ascii_only? && PATTERN.match?(text)
    end

    # @return [String] the name
    # @raise [DefinitionError] invalid name
    def check(name, what)
      text = text_of(name, what)
      return text if name?(text)

      raise DefinitionError, "#{what} must be 1 to 63 of A-Z a-z 0-9 _, not #{text[0, 100].inspect}"
    end

    def check_span(name)
      return name if name.length <= LONGEST_SPAN

      raise DefinitionError, "a span's name has at most #{LONGEST_SPAN} characters: #{name.inspect}"
    end

    def text_of(name, what)
      case name
      when String then name
      when Symbol then name.to_s
      else raise TypeError, "#{what} must be a Symbol or a String, not #{Kernel.instance_method(:class).bind_call(name)}"
      end
    end
  end
  private_constant :Names
end
