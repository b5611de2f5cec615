# frozen_string_literal: true

# Builds the gem's extension from this folder and the C library. Without the extension,
# every call of the gem is a no-op.

require_relative "../../extension"

Extension.build("tracepoint/native", "probes") do
  library = File.expand_path("../src", __dir__)
  $srcs = Dir[File.join(__dir__, "*.c"), File.join(library, "*.c")].map { |path| File.basename(path) }.sort
  $VPATH << "$(srcdir)/../src"
  $INCFLAGS << " -I$(srcdir)/.. -I$(srcdir)/../src"
  # Hidden: the process may also load a separate libstapsdt.so.
  $CFLAGS << " -std=gnu11 -O2 -fvisibility=hidden -DSDT_EXPORT="
  # Ruby's headers cause warnings under -Wextra and under older C standards.
  $warnflags = "-Wall -Wextra -Wno-unused-parameter -Wno-expansion-to-defined"
  $warnflags += " -Werror" if ENV["TRACEPOINT_WERROR"] == "1"
  $libs << " -ldl -lpthread"
  $distcleanfiles << "mkmf.log"
end
