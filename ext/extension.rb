# frozen_string_literal: true

require "rbconfig"
require "rubygems/ext"

# Builds an extension of the gem if this machine can, and otherwise lets the gem install
# without it. The extconf.rb of each extension uses this.
module Extension
  module_function

  # Write a Makefile that builds +target+, as the block configures it with mkmf. If that is
  # impossible here, say that the gem has no +feature+.
  def build(target, feature)
    if (reason = reason_against)
      puts "tracepoint-usdt: #{reason}; the gem installs without #{feature}"
      write_no_extension
    else
      yield
      create_makefile(target)
    end
  end

  # Return why this machine cannot build an extension, or nil. The order matters: mkmf ends
  # the process if Ruby's headers are missing.
  def reason_against
    system = RbConfig::CONFIG["host_os"]
    processor = RbConfig::CONFIG["host_cpu"]
    return "it needs CRuby, not #{RUBY_ENGINE}" unless RUBY_ENGINE == "ruby"
    return "#{system} is not supported" unless system.include?("linux")
    return "#{processor} is not supported" unless %w[x86_64 aarch64].include?(processor)
    return "Ruby's headers are missing (apt-get install ruby-dev)" unless headers?
    return "make is missing (apt-get install make)" unless make?

    "no working C compiler (apt-get install gcc libc6-dev)" unless compiler_works?
  end

  # mkmf looks for the same file.
  def headers?
    File.exist?(File.join(RbConfig::CONFIG["rubyhdrdir"], "ruby/ruby.h"))
  end

  def make?
    return true if ENV["MAKE"]

    ENV["PATH"].split(":").any? { |folder| File.executable?(File.join(folder, "make")) }
  end

  def compiler_works?
    require "mkmf"
    # mkmf first links a program with Ruby's library. An extension does not need that
    # library, and a static Ruby may come without it.
    $have_devel = true
    try_compile("#include <ruby.h>\nint main(void) { return 0; }\n")
  end

  # RubyGems demands a Makefile and runs make. Since the version of Ruby 4.0 it skips make
  # if the Makefile is missing.
  def write_no_extension
    if make?
      File.write("Makefile", "all clean install:\n")
    elsif !Gem::Ext::Builder.const_defined?(:NoMakefileError)
      puts "tracepoint-usdt: this version of RubyGems cannot install it without make"
    end
  end
end
