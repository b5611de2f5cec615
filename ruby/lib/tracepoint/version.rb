# frozen_string_literal: true

module Tracepoint
  VERSION = "0.2.0"
end
