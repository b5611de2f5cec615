# frozen_string_literal: true

module Tracepoint
  # A probe or span cannot be defined: an invalid name, too many operands, an unknown
  # type, or a name that is already taken.
  class DefinitionError < ArgumentError; end
end
