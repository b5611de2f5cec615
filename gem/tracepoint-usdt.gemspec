# frozen_string_literal: true

require_relative "lib/tracepoint/version"

Gem::Specification.new do |spec|
  spec.name = "tracepoint-usdt"
  spec.version = Tracepoint::VERSION
  spec.authors = ["The rbtrace-py developers"]
  spec.summary = "Static tracepoints (USDT) for Ruby programs, created at run time"
  spec.description = <<~TEXT
    Define probes in a Ruby program that cost next to nothing while untraced, and
    read them in production with rbtrace-py, bpftrace, bcc, perf, or gdb, without
    a restart. Linux on x86-64 and aarch64; on other platforms, the same API does
    nothing.
  TEXT
  spec.homepage = "https://rubygems.org/gems/tracepoint-usdt"
  spec.license = "MIT"
  spec.required_ruby_version = ">= 2.7"
  spec.metadata["rubygems_mfa_required"] = "true"

  # lib, sig, and ext are links, which ** in a glob does not follow unless the pattern
  # names the link. Git must not be used here: packed or copied trees do not have it.
  spec.files = Dir.chdir(__dir__) do
    Dir["lib/*.rb", "lib/tracepoint/*.rb", "lib/tracepoint/{benchmark,methods,testing}/*.rb", "lib/puma/plugin/*.rb",
        "sig/*.rbs", "LICENSE", "README.md",
        "ext/libstapsdt/*.h", "ext/libstapsdt/src/*.{c,h}", "ext/libstapsdt/ruby/*.{c,h}",
        "ext/libstapsdt/ruby/extconf.rb", "ext/agent/agent.{c,rb}", "ext/agent/hook/*.{c,h}", "ext/agent/agent/*.rb",
        "ext/agent/sources.txt", "ext/agent/extconf.rb", "ext/extension.rb"].sort
  end
  spec.require_paths = ["lib"]
  spec.extensions = ["ext/libstapsdt/ruby/extconf.rb", "ext/agent/extconf.rb"]
end
