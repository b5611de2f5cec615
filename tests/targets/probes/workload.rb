# 23 spans of known sizes in 3 threads, with nesting, recursion, a throw and an
# exception, at each step:
#
#   thread    spans (kind)                                        count
#   a         "plain" ×5, then "outer" around "inner" ×2           5+2+2
#   b         "recursive" to a depth of 6                          6
#   c         "raised" ×3, "thrown" ×2, "broken" ×1, "plain" ×2    8
#
# and as many :item events (id: 0..22, in the order of the table).
require "tracepoint"

WORK = Tracepoint.define_span(:work, {id: Integer, kind: String}, provider: :load)
ITEM = Tracepoint.define(
  :item, {id: Integer, kind: Symbol, price: Float, gift: :bool}, provider: :load
)
PAIR_BEGIN = Tracepoint.define(:pair_begin, {id: Integer}, provider: :load)
PAIR_END = Tracepoint.define(:pair_end, {id: Integer, kind: String}, provider: :load)

def item(id, kind)
  ITEM.fire(id, kind.to_sym, id * 0.5, id.even?)
end

def work(id, kind)
  item(id, kind)
  WORK.measure(id, kind) do
    PAIR_BEGIN.fire(id)
    yield if block_given?
  ensure
    PAIR_END.fire(id, kind)
  end
end

def thread_a
  5.times { |id| work(id, "plain") }
  2.times { |n| work(5 + (2 * n), "outer") { work(6 + (2 * n), "inner") } }
end

def recurse(id)
  work(id, "recursive") { recurse(id + 1) if id < 14 }
end

def leave_by_break(id)
  [1].each { work(id, "broken") { break } }
end

def thread_c
  3.times do |n|
    work(15 + n, "raised") { raise ArgumentError, "on purpose" }
  rescue ArgumentError
    nil
  end
  2.times { |n| catch(:out) { work(18 + n, "thrown") { throw :out } } }
  leave_by_break(20)
  2.times { |n| work(21 + n, "plain") }
end

def step
  [-> { thread_a }, -> { recurse(9) }, -> { thread_c }]
    .map { |job| Thread.new(&job) }.each(&:join)
end

$stdout.sync = true
puts "ready"
while $stdin.gets
  step
  puts "done"
end
