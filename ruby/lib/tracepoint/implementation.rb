# frozen_string_literal: true

require "rbconfig"

# Loads the extension, or the no-op implementation in its place.
module Tracepoint
  module Implementation
    module_function

    # @return [Boolean] whether the extension was loaded
    def load
      return fallback if ENV["TRACEPOINT_NATIVE"] == "0"

      native
      true
    rescue LoadError => e
      # Warn if probes are possible here: the extension may be missing by accident.
      warn "tracepoint: no extension, so no probes: #{e.message}#{"; #{remedy}" if buildable?}" if $VERBOSE || buildable?
      fallback
    end

    # Return whether extconf.rb would build the extension here.
    def buildable?
      RUBY_ENGINE == "ruby" && RbConfig::CONFIG["host_os"].include?("linux") &&
        %w[x86_64 aarch64].include?(RbConfig::CONFIG["host_cpu"])
    end

    def remedy
      # Rake is not part of each Ruby, and `rake` in the PATH may be another Ruby's.
      script = File.expand_path("../../../ext/libstapsdt/ruby/build.rb", __dir__)
      return "`#{RbConfig.ruby} #{script}` builds it" if File.exist?(script)

      "`gem pristine tracepoint-usdt` builds it, given a C compiler, make and Ruby's headers"
    end

    # A checkout keeps one extension per kind of Ruby that built it; an installed gem has
    # only one.
    def native
      built = File.join(__dir__, "native", abi, "native")
      require File.exist?("#{built}.#{RbConfig::CONFIG["DLEXT"]}") ? built : "tracepoint/native"
    end

    # A static Ruby has a separate folder. The extension of a shared Ruby would load
    # libruby, a second VM, into it.
    def abi
      config = RbConfig::CONFIG
      "#{config["ruby_version"]}#{"-static" if config["ENABLE_SHARED"] == "no"}-#{config["arch"]}"
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
