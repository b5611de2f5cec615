# frozen_string_literal: true

# A busy program that has everything that can be traced: calls, exceptions, objects,
# collections, and probes. A line of its input is a question about the program.
$LOAD_PATH.unshift File.expand_path("../../../ruby/lib", __dir__)
require "json"
require "tracepoint"
require "tracepoint/agent" unless ARGV.include?("bare")

$stdout.sync = true
EVENT = Tracepoint.define(:event, { id: Integer }, provider: :watched)
SPAN = Tracepoint.define_span(:work, { id: Integer }, provider: :watched)

module Work
  class Refused < StandardError; end
  class Item; end

  def self.round(number)
    SPAN.measure(number) { EVENT.fire(number) }
    Item.new
    refuse
  end

  def self.refuse
    raise Refused, "no"
  rescue Refused
    nil
  end
end

worker = Thread.new do
  (1..).each do |number|
    Work.round(number)
    GC.start if (number % 100).zero?
    sleep 0.001
  end
end
worker.name = "worker"

# The parts of a tracer that remain in the process, as seen by Ruby.
def left
  {
    threads: Thread.list.map { |thread| "#{thread.class} #{thread.name}" }.sort,
    tracepoints: ObjectSpace.each_object(TracePoint).count(&:enabled?),
    streams: [$stdout, $stderr].map { |stream| stream.class.to_s },
    features: $LOADED_FEATURES.size
  }
end

$asked = false # what is evaluated sets it
puts "ready"
while (line = $stdin.gets)
  case line.strip
  when "left" then puts JSON.generate(left)
  when "asked" then puts $asked
  else
    $asked = false
    puts "done"
  end
end
