# frozen_string_literal: true

# Fires known numbers of events. Each line of input is a verb and a number; "done"
# follows once they were fired.
#
#   fire NUMBER    hits shop:sold, each with its number, from 1 on, as cents
#   create NUMBER  objects in Events#make

require "tracepoint"

class Events
  SOLD = Tracepoint.define(:sold, { cents: Integer, name: String }, provider: :shop)

  def fire(number)
    number.times { |n| SOLD.fire(n + 1, "tea") }
  end

  def create(number)
    number.times { make }
  end

  def make
    Object.new
  end
end

$stdout.sync = true
puts "ready #{Process.pid}"
events = Events.new
while (line = $stdin.gets)
  verb, number = line.split
  events.public_send(verb, Integer(number))
  puts "done"
end
