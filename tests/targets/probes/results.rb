# 23 requests at each step, spans whose route and status are known at their end:
#
#   method  route     status  count
#   GET     "/users"  200        10
#   GET     nil       404         6
#   POST    "/orders" 500         4  raise
#   PUT     "/users"  nil         3  begin and end in different methods
require "tracepoint"

REQUEST = Tracepoint.define_span(
  :request, {method: String}, provider: :web, result: {route: String, status: Integer}
)

def get(route, status)
  REQUEST.measure("GET") do |span|
    span[:route] = route
    span[:status] = status
  end
end

def post
  REQUEST.measure("POST") do |span|
    span[:route] = "/orders"
    span[:status] = 500
    raise ArgumentError, "on purpose"
  end
rescue ArgumentError
  nil
end

def start_put
  REQUEST.start("PUT")
end

def finish_put(span)
  span[:route] = "/users"
  span.finish
end

$stdout.sync = true
puts "ready"
while $stdin.gets
  10.times { get("/users", 200) }
  6.times { get(nil, 404) }
  4.times { post }
  Array.new(3) { start_put }.each { |span| finish_put(span) }
  puts "done"
end
