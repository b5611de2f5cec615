# frozen_string_literal: true

require "test_helper"
require "socket"
require "tracepoint/net_http"

class NetHTTPTest < Minitest::Test
  RETURNED = 0
  RAISED = 1
  THROWN = 2
  FORM = { "Content-Type" => "application/x-www-form-urlencoded" }.freeze

  def setup
    @server = TCPServer.new("127.0.0.1", 0)
    @port = @server.addr[1]
    @serving = Thread.new { loop { serve(@server.accept) } }
  end

  def teardown
    @serving.kill.join
    @server.close
  end

  def test_request
    traced do |first, last|
      assert_equal "hello", Net::HTTP.get(URI("http://127.0.0.1:#{@port}/items/7?token=secret"))
      assert_equal [1, "GET", "127.0.0.1", "/items/7"], [first.hits, *strings(first, 0)]
      assert_equal [1, RETURNED, "GET", "127.0.0.1", "/items/7", 200], [last.hits, *end_of(last)]
      assert_operator last.value(0, Integer), :>, 0
    end
  end

  # Without a connection, `request` calls itself.
  def test_a_request_that_connects_is_one
    traced do |first, last|
      response = Net::HTTP.new("127.0.0.1", @port).request(Net::HTTP::Post.new("/missing", FORM), "a=1")
      assert_equal ["404", 1, 1, "POST", 404], [response.code, first.hits, last.hits, end_of(last)[1], end_of(last).last]
    end
  end

  def test_several_on_a_connection
    connected do |begins, _|
      traced do |_, last|
        Net::HTTP.start("127.0.0.1", @port) { |http| 3.times { |number| http.get("/#{number}") } }
        assert_equal [3, "/2"], [last.hits, end_of(last)[3]]
      end
      assert_equal [1, "127.0.0.1", @port], [begins.hits, begins.value(0, String), begins.value(1, Integer)]
    end
  end

  def test_a_body_that_is_read_in_pieces
    traced do |_, last|
      Net::HTTP.start("127.0.0.1", @port) do |http|
        http.request_get("/") { |response| response.read_body { |piece| assert_equal ["hello", 0], [piece, last.hits] } }
      end
      assert_equal [1, RETURNED, 200], [last.hits, end_of(last).first, end_of(last).last]
    end
  end

  def test_raised_and_left
    traced do |_, last|
      assert_raises(EOFError) { Net::HTTP.start("127.0.0.1", @port) { |http| http.post("/cut", "", FORM) } }
      assert_equal [1, RAISED, nil], [last.hits, end_of(last).first, end_of(last).last]
      Net::HTTP.start("127.0.0.1", @port) { |http| http.request_get("/") { break } }
      assert_equal [2, THROWN, nil], [last.hits, end_of(last).first, end_of(last).last]
    end
  end

  def test_no_connection
    port = TCPServer.open("127.0.0.1", 0) { |server| server.addr[1] }
    connected do |_, last|
      assert_raises(Errno::ECONNREFUSED) { Net::HTTP.get(URI("http://127.0.0.1:#{port}/")) }
      assert_equal [1, RAISED, port], [last.hits, last.value(1, Integer), last.value(3, Integer)]
    end
  end

  # A library may pass an object that only resembles a request.
  def test_what_does_not_fit_is_passed_on
    assert_equal :passed, odd.__send__(:transport_request, :passed)
    traced do |first, last|
      assert_equal :passed, odd.__send__(:transport_request, :passed)
      assert_equal [1, nil, 1, RETURNED, nil], [first.hits, first.value(0, String), last.hits, end_of(last).first, end_of(last).last]
    end
  end

  def test_untraced_no_objects
    needs_native
    http = odd
    assert_no_objects { http.__send__(:transport_request, nil) }
  end

  private

  # Answer requests until the client disconnects, or a request asks for a broken connection.
  def serve(client)
    while (line = client.gets)
      length = client.each_line("\r\n").take_while { |header| header != "\r\n" }.grep(/\AContent-Length: /i).first.to_s[/\d+/].to_i
      client.read(length)
      break if line.include?("/cut")

      status = line.include?("/missing") ? "404 Not Found" : "200 OK"
      client.write("HTTP/1.1 #{status}\r\nContent-Length: 5\r\n\r\nhello")
    end
  rescue SystemCallError
    nil # the client has disconnected
  ensure
    client.close
  end

  def odd
    Class.new do
      def transport_request(request)
        request
      end

      prepend Tracepoint::NetHTTP::Exchange
    end.new
  end

  def traced(&block)
    tapping(Tracepoint::NetHTTP::REQUEST, &block)
  end

  def connected(&block)
    tapping(Tracepoint::NetHTTP::CONNECT, &block)
  end

  # Return method, host, and path.
  def strings(tap, from)
    Array.new(3) { |i| tap.value(from + i, String) }
  end

  # Return outcome, method, host, path, and status.
  def end_of(tap)
    [tap.value(1, Integer), *strings(tap, 2), tap.value(5, Integer)]
  end
end
