# frozen_string_literal: true

module Tracepoint
  VERSION = "0.1.0"
end
