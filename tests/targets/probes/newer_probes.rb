# frozen_string_literal: true

# Fires the probes that Ruby has since 4.1 a known number of times. Each line of input is a
# verb and a number; the answer at its end is "done".
#
#   collect NUMBER   whole collections
#   create NUMBER    objects, of a class whose objects have flags of their own
#   allocate NUMBER  strings of 123,456 bytes
#   switch NUMBER    times the GVL to another thread and back

GC.disable

class Probed
  def create(number)
    number.times { Odd.allocate }
  end

  # More members than any other class has, so that the size of its objects is unique.
  Odd = Struct.new(*Array.new(60) { |n| :"member_#{n}" })

  def collect(number)
    number.times { GC.start }
  end

  def allocate(number)
    number.times { "x" * 123_456 }
  end

  def switch(number)
    queues = [Queue.new, Queue.new]
    other = Thread.new { number.times { queues[1] << queues[0].pop } }
    number.times do |n|
      queues[0] << n
      queues[1].pop
    end
    other.join
  end
end

probed = Probed.new
$stdout.sync = true
puts "ready"
while (line = $stdin.gets)
  verb, number = line.split
  probed.public_send(verb, number.to_i)
  puts "done"
end
