# frozen_string_literal: true

module Tracepoint
  # A probe or a span cannot be defined like this: a bad name, too many
  # operands, an unknown type, or a name that is taken.
  class DefinitionError < ArgumentError; end
end
