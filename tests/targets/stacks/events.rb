# frozen_string_literal: true

# Fires known numbers of events. Each line of input is a verb and a number; "done"
# follows once they were fired.
#
#   fire NUMBER    hits shop:sold, each with its number, from 1 on, as cents
#   lack NUMBER    hits shop:sold, with nil as cents; much: with 2⁶²; most: with 2⁴⁴
#   branch DEPTH   hits shop:sold by 2 to the power of DEPTH different stacks
#   spin NUMBER    the same as fire, until a line of input comes
#   create NUMBER  objects in Events#make
#   fail NUMBER    exceptions in Events#one_fails
#   parent NUMBER  calls of getppid in Events#ask
#   mask NUMBER    calls of umask in Events#veil, with 1, 2 … 0777 and again 0
#   write NUMBER   writes of 1, 2 … bytes to /dev/null in Events#put
#   signal NUMBER  signals SIGCONT to itself in Events#poke
#   crowd NUMBER   forks four children, each of which hits shop:sold NUMBER times
#   family NUMBER  forks four children, each of which calls getppid NUMBER times

require "io/wait"
require "tracepoint"

class Events
  SOLD = Tracepoint.define(:sold, { cents: Integer, name: String }, provider: :shop)

  def fire(number)
    number.times { |n| SOLD.fire(n + 1, "tea") }
  end

  def lack(number)
    number.times { SOLD.fire(nil, "tea") }
  end

  def much(number)
    number.times { SOLD.fire(2**62, "tea") }
  end

  def most(number)
    number.times { SOLD.fire(2**44, "tea") }
  end

  def branch(depth)
    (1 << depth).times { |way| left(depth, way) }
  end

  def left(depth, way)
    return SOLD.fire(1, "tea") if depth.zero?

    way.even? ? left(depth - 1, way >> 1) : right(depth - 1, way >> 1)
  end

  def right(depth, way)
    return SOLD.fire(1, "tea") if depth.zero?

    way.even? ? left(depth - 1, way >> 1) : right(depth - 1, way >> 1)
  end

  def spin(number)
    fire(number) until $stdin.wait_readable(0)
    $stdin.gets
  end

  def create(number)
    number.times { make }
  end

  # ZJIT creates objects without Ruby's probe: by Object.new, and from 4.1 on also by
  # Object.allocate.
  def make
    Object.public_send(:allocate)
  end

  def fail(number)
    number.times { one_fails }
  end

  def one_fails
    raise ArgumentError
  rescue ArgumentError
    nil
  end

  def parent(number)
    number.times { ask }
  end

  def ask
    Process.ppid
  end

  def mask(number)
    number.times { |n| veil((n + 1) & 0o777) }
  end

  def veil(bits)
    File.umask(bits)
  end

  def write(number)
    File.open("/dev/null", "w") { |file| number.times { |n| put(file, "x" * (n + 1)) } }
  end

  def put(file, text)
    file.syswrite(text)
  end

  def signal(number)
    number.times { poke }
  end

  def poke
    Process.kill(:CONT, Process.pid)
  end

  def crowd(number)
    in_four { fire(number) }
  end

  def family(number)
    in_four { parent(number) }
  end

  def in_four
    children = Array.new(4) do
      fork do
        yield
        exit!(true)
      end
    end
    children.each { |child| Process.wait(child) }
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
