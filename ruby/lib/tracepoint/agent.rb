# frozen_string_literal: true

# Loads the agent, which answers a tracer's requests for methods, values, and the heap.
# Loading this file opens a socket for the process's own user (docs/agent.md).
# `require "tracepoint"` does not load it.
#
require_relative "version"

# The agent is also loaded into processes without the gem, so it does not depend on the
# gem. It is three folders up in a checkout, and two folders up in an installed gem.
require [File.expand_path("../../../ext/agent/agent.rb", __dir__),
         File.expand_path("../../ext/agent/agent.rb", __dir__)].find { |path| File.exist?(path) }
