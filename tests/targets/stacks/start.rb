# frozen_string_literal: true

# Ends within milliseconds. With arguments, it first executes them as a command.

def first(number)
  second(number + 1)
end

def second(number)
  number * 2
end

first(1)
words = ARGV.dup
exec(*words) unless words.empty?
3.times { |number| second(number) }
begin
  raise ArgumentError, "last"
rescue ArgumentError
  first(2)
end
