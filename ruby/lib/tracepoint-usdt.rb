# frozen_string_literal: true

# The name of the gem, which is what Bundler.require looks for.
require "tracepoint"
