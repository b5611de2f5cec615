# frozen_string_literal: true

# Methods to trace. Each line on standard input is one of these commands. The answer to
# fib and request is the ns that fib(N), or one of N requests, took.
#
#   fib N, request N    measure, without the time of waiting for a processor
#   calls               count the method calls of one request
#   spin N              run a loop N times that calls nothing, for tools that only reach
#                       a running program
#   count, uncount      count calls by method in a Hash, with a TracePoint in Ruby
#   profile             measure wall time of all methods with ruby-prof, from here on
#
#   methods.rb [LIBRARY]    to be loaded first: rbtrace, tracepoint/agent, ruby-prof

require ARGV[0] if ARGV[0]
$stdout.sync = true

def fib(number)
  number < 2 ? number : fib(number - 1) + fib(number - 2)
end

# The work of a small web framework for a page: a route, parameters, a few objects
# that know some things about each other, and a template.
module Web
  Route = Struct.new(:verb, :pattern, :names, :action)

  class Router
    def initialize
      @routes = []
    end

    def add(verb, path, action)
      names = path.scan(/:(\w+)/).flatten
      pattern = Regexp.new("\\A#{path.gsub(/:\w+/, "([^/]+)")}\\z")
      @routes << Route.new(verb, pattern, names, action)
    end

    def find(verb, path)
      @routes.each do |route|
        next unless route.verb == verb && (match = route.pattern.match(path))

        return [route.action, route.names.zip(match.captures).to_h]
      end
      nil
    end
  end

  class Request
    attr_reader :env

    def initialize(env)
      @env = env
    end

    def path
      env.fetch("PATH_INFO")
    end

    def method
      env.fetch("REQUEST_METHOD")
    end

    def query
      @query ||= parse(env.fetch("QUERY_STRING"))
    end

    def headers
      env.select { |name, _| name.start_with?("HTTP_") }.to_h { |name, value| [header(name), value] }
    end

    def header(name)
      name.delete_prefix("HTTP_").split("_").map(&:capitalize).join("-")
    end

    def parse(text)
      text.split("&").to_h { |pair| pair.split("=", 2).map { |part| unescape(part) } }
    end

    def unescape(text)
      text.tr("+", " ").gsub(/%(\h\h)/) { $1.hex.chr }
    end
  end

  class Item
    def initialize(number)
      @number = number
    end

    def title
      "Item #{@number}"
    end

    def price
      (@number * 37 % 1000) / 100.0
    end

    def to_row
      "<tr><td>#{Page.escape(title)}</td><td>#{Page.money(price)}</td></tr>"
    end
  end

  module Page
    SPECIAL = { "&" => "&amp;", "<" => "&lt;", ">" => "&gt;" }.freeze

    def self.escape(text)
      text.gsub(/[&<>]/, SPECIAL)
    end

    def self.money(amount)
      format("%.2f", amount)
    end

    def self.layout(title)
      "<html><head><title>#{escape(title)}</title></head><body>#{yield}</body></html>"
    end
  end

  class Response
    def initialize
      @headers = { "Content-Type" => "text/html" }
      @body = []
    end

    def write(text)
      @body << text
    end

    def finish
      @headers["Content-Length"] = @body.sum(&:bytesize).to_s
      [200, @headers, @body]
    end
  end

  class Application
    def initialize
      @router = Router.new
      @router.add("GET", "/about", :about)
      @router.add("GET", "/shelves/:shelf/items", :items)
    end

    def call(env)
      request = Request.new(env)
      action, names = @router.find(request.method, request.path)
      respond(send(action, names.merge(request.query), request.headers))
    end

    def items(parameters, headers)
      count = parameters.fetch("count").to_i
      rows = found(count).sort_by(&:title).map(&:to_row)
      Page.layout("#{parameters["q"]} in #{headers["Host"]}") { "<table>#{rows.join}</table>" }
    end

    def found(count)
      Array.new(count) { |number| Item.new(number) }
    end

    def respond(text)
      response = Response.new
      response.write(text)
      response.finish
    end
  end

  ENVIRONMENT = {
    "REQUEST_METHOD" => "GET", "PATH_INFO" => "/shelves/7/items", "QUERY_STRING" => "q=a%20b+c&count=5&page=1",
    "HTTP_HOST" => "example.org", "HTTP_ACCEPT" => "text/html", "HTTP_ACCEPT_LANGUAGE" => "en", "SERVER_PORT" => "80"
  }.freeze
end

APPLICATION = Web::Application.new

def requests(count)
  APPLICATION.call(Web::ENVIRONMENT) while (count -= 1) >= 0
end

# The kernel says how long a thread could have run and did not.
def now
  waited = File.read("/proc/thread-self/schedstat").split[1].to_i
  Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond) - waited
end

def measured
  before = now
  yield
  now - before
end

def calls
  count = 0
  trace = TracePoint.new(:call) { count += 1 }
  trace.enable { yield }
  count - 1 # the last one is this one's
rescue ArgumentError
  0
end

COUNTS = Hash.new(0)
COUNTING = TracePoint.new(:call) { |event| COUNTS[[event.defined_class, event.method_id]] += 1 }

puts "ready"
while (line = $stdin.gets)
  command, number = line.split
  answer =
    case command
    when "fib" then measured { fib(number.to_i) }
    when "request" then measured { requests(number.to_i) } / number.to_i
    when "spin" then number = number.to_i; measured { number -= 1 while number > 0 }
    when "calls" then calls { APPLICATION.call(Web::ENVIRONMENT) }
    when "count" then COUNTING.enable
    when "uncount" then COUNTING.disable
    when "profile"
      PROFILE = RubyProf::Profile.new(measure_mode: RubyProf::WALL_TIME)
      PROFILE.start
      nil
    end
  puts answer
end
