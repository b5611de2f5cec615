# frozen_string_literal: true

require "rbconfig"

# Loads what the rest stands on: the extension, or the no-op in its place.
module Tracepoint
  module Implementation
    module_function

    # @return [Boolean] whether it is the extension
    def load
      return fallback if ENV["TRACEPOINT_NATIVE"] == "0"

      native
      true
    rescue LoadError => e
      warn "tracepoint: no extension, so no probes: #{e.message}" if $VERBOSE
      fallback
    end

    # A checkout keeps one for each Ruby that was built in it; an installed gem
    # has the one.
    def native
      built = File.join(__dir__, "native", "#{RbConfig::CONFIG["ruby_version"]}-#{RbConfig::CONFIG["arch"]}", "native")
      require File.exist?("#{built}.#{RbConfig::CONFIG["DLEXT"]}") ? built : "tracepoint/native"
    end

    def fallback
      require_relative "fallback"
      false
    end
  end
  private_constant :Implementation

  SUPPORTED = Implementation.load
  private_constant :SUPPORTED, :Registry
end
