# A client of two servers that it starts: Redis, with its socket in the folder ARGV[0], and
# HTTP. At each step it sends requests to both, and prints what they have counted.
require "json"
require "socket"
require "tracepoint/net_http"
require "tracepoint/redis"

SOCKET = File.join(ARGV.fetch(0), "redis.sock")
LOG = IO.popen(["redis-server", "--port", "0", "--unixsocket", SOCKET, "--save", ""])
LOG.each_line.find { |line| line.match?(/ready to accept connections/i) }
REDIS = Redis.new(path: SOCKET)

WEB = TCPServer.new("127.0.0.1", 0)
SERVED = []

# Answers the requests of a connection. A request for /missing gets a 404.
def serve(client)
  SERVED << "connections"
  while (line = client.gets)
    nil until client.gets == "\r\n"
    SERVED << (status = line.include?("/missing") ? 404 : 200)
    client.write("HTTP/1.1 #{status} It\r\nContent-Length: 2\r\n\r\nok")
  end
end

def ask_redis
  REDIS.config(:resetstat)
  20.times { |number| REDIS.set("tea", number) }
  15.times { REDIS.get("tea") }
  5.times { REDIS.pipelined { |it| 3.times { it.incr("sold") } } }
  2.times { REDIS.multi { |it| [it.incr("sold"), it.get("tea")] } }
  REDIS.info(:commandstats).transform_values { |figures| figures["calls"].to_i }
end

def ask_web
  SERVED.clear
  3.times { Net::HTTP.get(URI("http://127.0.0.1:#{WEB.addr[1]}/items?page=2")) }
  Net::HTTP.start("127.0.0.1", WEB.addr[1]) do |http|
    6.times { http.get("/items") }
    4.times { http.get("/missing") }
  end
  SERVED.tally
end

Thread.new { loop { Thread.new(WEB.accept) { |client| serve(client) } } }
$stdout.sync = true
puts "ready"
puts JSON.generate(redis: ask_redis, web: ask_web) while $stdin.gets
