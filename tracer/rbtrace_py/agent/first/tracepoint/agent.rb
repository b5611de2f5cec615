# frozen_string_literal: true

# The first file that `require "tracepoint/agent"` finds in a program started with this
# folder on its load path. It loads the gem's agent if this Ruby has the gem, else ours.
lambda do |folder|
  places = $LOAD_PATH.select { |path| path == folder || File.basename(path).start_with?("rbtrace-hook-") }
  $LOAD_PATH.reject! { |path| places.include?(path) }
  require "tracepoint/agent"
rescue LoadError
  $LOAD_PATH.unshift(*places)
  require File.realpath("../source/agent.rb", folder)
end.call(File.expand_path("..", __dir__))
