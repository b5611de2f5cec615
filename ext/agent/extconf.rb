# frozen_string_literal: true

# Builds the agent's hook when the gem is installed. Without the hook, the agent has no
# method events.

require_relative "../extension"

Extension.build("tracepoint/agent_hook", "method events") do
  $srcs = File.readlines(File.join(__dir__, "sources.txt"), chomp: true).map { |path| File.basename(path) }
  $objs = $srcs.map { |name| name.sub(/c\z/, "o") }
  $VPATH << "$(srcdir)/hook"
  $CFLAGS << " -std=gnu11 -O2 -fvisibility=hidden -fno-stack-protector"
  $warnflags = "-Wall -Wextra -Wno-strict-prototypes"
  $warnflags += " -Werror" if ENV["TRACEPOINT_WERROR"] == "1"
  $distcleanfiles << "mkmf.log"
end
