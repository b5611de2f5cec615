# frozen_string_literal: true

# Builds the gem's extension from this folder and the C library beside it.
# Where that cannot work it writes a Makefile that does nothing: the gem then
# installs all the same, and every call is a no-op.

require "mkmf"

# Why this machine gets no extension, or nil.
def reason_against
  return "no extension for #{RUBY_ENGINE}" unless RUBY_ENGINE == "ruby"
  return "no probes on #{RbConfig::CONFIG["host_os"]}" unless RbConfig::CONFIG["host_os"].include?("linux")
  return "no probes on #{RbConfig::CONFIG["host_cpu"]}" unless %w[x86_64 aarch64].include?(RbConfig::CONFIG["host_cpu"])

  "no working C compiler" unless compiler_works?
end

def compiler_works?
  try_compile("#include <ruby.h>\nint main(void) { return 0; }\n")
rescue RuntimeError # how mkmf says that there is no compiler at all
  false
end

def configure
  library = File.expand_path("../src", __dir__)
  $srcs = Dir[File.join(__dir__, "*.c"), File.join(library, "*.c")].map { |path| File.basename(path) }.sort
  $VPATH << "$(srcdir)/../src"
  $INCFLAGS << " -I$(srcdir)/.. -I$(srcdir)/../src"
  # Hidden: a process may also have loaded a libstapsdt.so of its own.
  $CFLAGS << " -std=gnu11 -O2 -fvisibility=hidden -DSDT_EXPORT="
  # Ruby's headers are not clean under -Wextra and older standards' warnings.
  $warnflags = "-Wall -Wextra -Wno-unused-parameter -Wno-expansion-to-defined"
  $warnflags += " -Werror" if ENV["TRACEPOINT_WERROR"] == "1"
  $libs << " -ldl -lpthread"
  $distcleanfiles << "mkmf.log"
end

if (reason = reason_against)
  message("tracepoint-usdt: #{reason}; the gem does nothing here\n")
  File.write("Makefile", dummy_makefile(__dir__).join)
else
  configure
  create_makefile("tracepoint/native")
end
