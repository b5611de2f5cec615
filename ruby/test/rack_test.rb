# frozen_string_literal: true

require "test_helper"
begin
  require "rack"
  require "rack/lint"
  require "rack/mock"
  require "tracepoint/rack"
rescue LoadError
  nil # these tests are skipped without Rack
end

class RackTest < Minitest::Test
  RETURNED = 0
  RAISED = 1
  THROWN = 2
  SECOND = 1_000_000_000
  BAD_TIMES = ["", "t=", "soon", "t=soon", "-1795617204", "0", "179561720", "17956172041", "t=1795617204.x", "1795617204,1795617205",
               " 1795617204", "1795617204\n", "ts=1795617204", "1795617204.394 ", "\xff".b, "1" * 10_000, ["1795617204"], 5,
               BasicObject.new].freeze

  def setup
    skip "no rack" unless Tracepoint.const_defined?(:Rack, false)
  end

  def test_request
    traced do |first, last|
      env = env_of("/items/7", "HTTP_X_REQUEST_ID" => "abc")
      status, _, body = call(env) { |it| [201, headers, [it["REQUEST_METHOD"]]] }
      assert_equal 201, status
      assert_equal [1, "GET", "/items/7", "abc"], [first.hits, *Array.new(3) { |i| first.value(i, String) }]
      assert_equal ["GET"], body.to_enum.to_a
      assert_equal 0, last.hits
      body.close
      body.close
      assert_equal [1, RETURNED, "GET", "/items/7", "abc", nil, nil, 201], [last.hits, *end_of(last)]
      assert_operator last.value(0, Integer), :>, 0
    end
  end

  def test_it_passes_lint_traced_and_untraced
    chain = ::Rack::Lint.new(Tracepoint::Rack.new(::Rack::Lint.new(->(_) { [200, headers, ["hello"]] })))
    assert_equal "hello", ::Rack::MockRequest.new(chain).get("/").body
    traced { |_, last| assert_equal ["hello", 1], [::Rack::MockRequest.new(chain).get("/").body, last.hits] }
  end

  # Rack 3: the body is called with the connection.
  def test_streaming_body
    traced do |_, last|
      stream = StringIO.new
      _, _, body = call(env_of("/x")) { [200, headers, ->(out) { out.write("hello") }] }
      body.call(stream)
      assert_equal ["hello", 0], [stream.string, last.hits]
      body.close
      assert_equal [1, RETURNED, 200], [last.hits, end_of(last).first, end_of(last).last]
    end
  end

  def test_routes
    traced do |_, last|
      { { "action_dispatch.request.path_parameters" => { controller: "items", action: "show" } } => "items#show",
        { "action_dispatch.request.path_parameters" => {} } => nil,
        { "sinatra.route" => "GET /items/:id" } => "GET /items/:id" }.each do |found, route|
        respond(env_of("/x")) { |env| [200, headers, [env.update(found) && ""]] }
        assert_equal [route, 200], end_of(last).last(2)
      end
    end
  end

  def test_what_others_left_in_the_environment
    traced do |_, last|
      respond(env_of("/x")) { |env| [200, headers, [env.update("action_dispatch.request.path_parameters" => 5) && ""]] }
      assert_equal [1, RETURNED, nil, 200], [last.hits, end_of(last).first, *end_of(last).last(2)]
    end
  end

  def test_what_does_not_fit_is_passed_on
    env = { "REQUEST_METHOD" => "GET", "SCRIPT_NAME" => "/ü", "PATH_INFO" => (+"/\xff").b }
    app = Tracepoint::Rack.new(->(_) { [:ok, {}, []] })
    assert_equal :ok, app.call(env).first
    traced do |first, last|
      assert_equal [:ok, 1], [app.call(env).tap { |response| response.last.close }.first, first.hits]
      assert_equal [1, RETURNED, nil], [last.hits, end_of(last).first, end_of(last).last]
    end
  end

  def test_identity_of_rails_comes_first
    traced do |first, _|
      respond(env_of("/x", "HTTP_X_REQUEST_ID" => "header", "action_dispatch.request_id" => "rails"))
      assert_equal "rails", first.value(2, String)
    end
  end

  def test_time_in_the_queue
    traced do |first, last|
      5.downto(1) do |waited|
        forms(Time.now - waited).each do |text|
          respond(env_of("/x", "HTTP_X_REQUEST_START" => text))
          assert_includes (waited * SECOND)..((waited + 60) * SECOND), first.value(3, Integer), text
          assert_equal first.value(3, Integer), last.value(5, Integer)
        end
      end
      assert_equal 0, queued(first, "t=#{Time.now.to_i + 60}")
      BAD_TIMES.each { |text| assert_nil queued(first, text) }
    end
  end

  def test_untraced_no_time_is_read
    app = Tracepoint::Rack.new(->(_) { [-1, {}, []] })
    without, with = [{}, { "HTTP_X_REQUEST_START" => "t=1795617204.394" }].map { |headers| env_of("/x", headers) }
    assert_equal objects_of { app.call(without) }, objects_of { app.call(with) }
  end

  def test_path_within_a_mounted_application
    traced do |first, _|
      respond(env_of("/x").merge("SCRIPT_NAME" => "/shop"))
      assert_equal "/shop/x", first.value(1, String)
    end
  end

  def test_raised_and_thrown
    traced do |_, last|
      assert_raises(RuntimeError) { call(env_of("/x")) { raise "boom" } }
      assert_equal [1, RAISED, nil], [last.hits, end_of(last).first, end_of(last).last]
      catch(:async) { call(env_of("/x")) { throw :async } }
      assert_equal [2, THROWN], [last.hits, end_of(last).first]
    end
  end

  def test_hijacked
    traced do |_, last|
      given = []
      _, _, body = call(env_of("/x")) { [-1, {}, given] }
      assert_equal [1, RETURNED, -1], [last.hits, end_of(last).first, end_of(last).last]
      assert_same given, body # nothing remains to end, even if a tracer attaches now
    end
  end

  def test_a_tracer_comes_meanwhile
    needs_taps
    tap = nil
    given = []
    _, _, body = call(env_of("/x")) do
      tap = TappedSite.new(registry.sites(Tracepoint::Rack::REQUEST).last)
      [200, {}, given]
    end
    assert_equal [1, -1, RETURNED], [tap.hits, tap.value(0, Integer), end_of(tap).first]
    assert_same given, body
  ensure
    tap&.close
  end

  def test_untraced_the_body_is_not_wrapped
    given = []
    assert_same given, call(env_of("/x")) { [200, {}, given] }.last
  end

  private

  # Servers write the time in seconds, milliseconds, or microseconds, with or without `t=`.
  def forms(time)
    micros = (time.to_r * 1_000_000).to_i
    numbers = [micros / 1_000_000, format("%d.%03d", micros / 1_000_000, micros / 1000 % 1000), micros / 1000, micros]
    numbers.flat_map { |number| [number.to_s, "t=#{number}"] }
  end

  def queued(tap, text)
    respond(env_of("/x").merge("HTTP_X_REQUEST_START" => text))
    tap.value(3, Integer)
  end

  def env_of(path, headers = {})
    ::Rack::MockRequest.env_for(path, headers)
  end

  # Rack 3's Lint requires headers that are not frozen.
  def headers
    { "content-type" => "text/plain" }
  end

  def call(env, &app)
    Tracepoint::Rack.new(app || ->(_) { [200, headers, [""]] }).call(env)
  end

  def respond(env, &app)
    call(env, &app).last.close
  end

  def traced(&block)
    tapping(Tracepoint::Rack::REQUEST, &block)
  end

  # Return outcome, method, path, ID, time in the queue, route, and status.
  def end_of(tap)
    types = [Integer, String, String, String, Integer, String, Integer]
    types.each_with_index.map { |type, i| tap.value(i + 1, type) }
  end
end
