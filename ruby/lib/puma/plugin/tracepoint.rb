# frozen_string_literal: true

require "puma/plugin"
require "tracepoint/puma"

# Enables `plugin :tracepoint` in Puma's configuration.
Puma::Plugin.create {}
