# frozen_string_literal: true

# The Rails application of bench/rails without a server. Each line on its input has it serve
# some requests; it says the CPU of one in ns, the least of three tries.
$LOAD_PATH.unshift File.expand_path("../../../ruby/lib", __dir__)
require "tracepoint/agent"
require "rack/mock"
require_relative "../rails/app"

TRIES, REQUESTS = 3, 4
ENVIRONMENT = Rack::MockRequest.env_for("http://localhost/items")

def serve
  status, _, body = Shop.call(ENVIRONMENT.dup)
  body.each { |_| }
  body.close if body.respond_to?(:close)
  raise "status #{status}" unless status == 200
end

def timed
  before = Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID, :nanosecond)
  yield
  Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID, :nanosecond) - before
end

Seeds.plant unless Item.table_exists?
30.times { serve }
$stdout.sync = true
puts "ready"
while $stdin.gets
  GC.start
  GC.disable
  puts Array.new(TRIES) { timed { REQUESTS.times { serve } } }.min / REQUESTS
  GC.enable
end
