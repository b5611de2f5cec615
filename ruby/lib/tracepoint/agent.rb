# frozen_string_literal: true

# Answers a tracer's requests for methods, values and the heap. Loading this file opens a
# socket for the process's own user (docs/agent.md); it is not loaded by
# `require "tracepoint"`.
#
require_relative "version"

# The agent is also put into processes without the gem, so it stands by itself: in
# a checkout three folders up, in an installed gem two.
require [File.expand_path("../../../ext/agent/agent.rb", __dir__),
         File.expand_path("../../ext/agent/agent.rb", __dir__)].find { |path| File.exist?(path) }
