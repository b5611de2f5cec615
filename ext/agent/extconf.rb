# frozen_string_literal: true

# Builds the agent's hook when the gem is installed. Where that cannot work the
# gem installs all the same, and the agent does without method events.

require "mkmf"

def compiler_works?
  try_compile("int main(void) { return 0; }\n")
rescue RuntimeError # how mkmf says that there is no compiler at all
  false
end

if RUBY_ENGINE == "ruby" && RbConfig::CONFIG["host_os"].include?("linux") &&
   %w[x86_64 aarch64].include?(RbConfig::CONFIG["host_cpu"]) && compiler_works?
  $srcs = File.readlines(File.join(__dir__, "sources.txt"), chomp: true).map { |path| File.basename(path) }
  $objs = $srcs.map { |name| name.sub(/c\z/, "o") }
  $VPATH << "$(srcdir)/hook"
  $CFLAGS << " -std=gnu11 -O2 -fvisibility=hidden -fno-stack-protector"
  $warnflags = "-Wall -Wextra -Wno-strict-prototypes"
  $warnflags += " -Werror" if ENV["TRACEPOINT_WERROR"] == "1"
  $distcleanfiles << "mkmf.log"
  create_makefile("tracepoint/agent_hook")
else
  message("tracepoint-usdt: no method events here\n")
  File.write("Makefile", dummy_makefile(__dir__).join)
end
