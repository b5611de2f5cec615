# frozen_string_literal: true

# ruby ruby/test/run.rb [minitest's options]

$LOAD_PATH.unshift File.expand_path("../lib", __dir__), __dir__
require "test_helper"
Dir[File.join(__dir__, "**", "*_test.rb")].sort.each { |file| require file }
