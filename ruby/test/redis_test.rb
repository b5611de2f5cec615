# frozen_string_literal: true

require "test_helper"
require_relative "support/redis_server"
begin
  require "tracepoint/redis"
rescue LoadError
  nil # these tests are skipped without the gem redis
end

class RedisTest < Minitest::Test
  RETURNED = 0
  RAISED = 1
  # Version 4 of the gem redis does not use redis-client.
  IS_OLD = defined?(Tracepoint::Redis) && ::Redis::Client.method_defined?(:process)

  def setup
    skip "no gem redis" unless Tracepoint.const_defined?(:Redis, false)
    skip "no redis-server" unless RedisServer.installed?
    @redis = Redis.new(url: RedisServer.url)
    @redis.flushall # also connects
  end

  def test_command
    traced do |first, last|
      @redis.set("tea", "secret")
      assert_equal [1, "SET", "tea", 1], [first.hits, *values(first, 0)]
      assert_equal [1, RETURNED, "SET", "tea", 1], [last.hits, last.value(1, Integer), *values(last, 2)]
      assert_operator last.value(0, Integer), :>, 0
      assert_equal ["secret", 2, "GET"], [@redis.get("tea"), last.hits, values(last, 2).first]
    end
  end

  def test_several_at_once
    traced do |_, last|
      assert_equal ["OK", "1", 2], (@redis.pipelined { |it| [it.set("a", 1), it.get("a"), it.incr("a")] })
      assert_equal [1, RETURNED, "PIPELINE", nil, 3], [last.hits, last.value(1, Integer), *values(last, 2)]
      assert_equal [3, 4], (@redis.multi { |it| [it.incr("a"), it.incr("a")] })
      assert_equal ["MULTI", nil, 4], values(last, 2)
    end
  end

  def test_a_command_that_is_refused
    traced do |_, last|
      @redis.set("text", "x")
      assert_raises(Redis::CommandError) { @redis.incr("text") }
      assert_equal [IS_OLD ? RETURNED : RAISED, "INCR"], [last.value(1, Integer), values(last, 2).first]
    end
  end

  # redis-client connects before it writes a command.
  def test_an_error_of_the_connection
    traced do |_, last|
      assert_raises(Redis::CannotConnectError) { Redis.new(path: "/nowhere/redis.sock", reconnect_attempts: 0).ping }
      found = Array.new(last.hits) { [last.value(1, Integer), values(last, 2).first] }
      assert_equal (IS_OLD ? [[RAISED, "PING"]] : []), found
    end
  end

  def test_nothing_but_keys
    traced do |first, _|
      assert_raises(Redis::CommandError) { @redis.auth("secret") }
      assert_equal ["AUTH", nil, 1], values(first, 0)
      @redis.echo("secret")
      assert_equal ["ECHO", nil, 1], values(first, 0)
      @redis.eval("return 1", ["key"])
      assert_equal ["EVAL", nil, 1], values(first, 0)
      @redis.mget("a", "b")
      assert_equal ["MGET", "a", 1], values(first, 0)
      @redis.call("del", %w[c d])
      assert_equal ["DEL", "c", 1], values(first, 0)
    end
  end

  # The server reports which argument of each command is its first key.
  def test_commands_with_a_key
    first_keys = @redis.call("command").to_h { |name, _, _, first| [name.upcase, first] }
    commands = Tracepoint::Redis::WITH_KEY
    assert_equal commands.uniq, commands
    assert_equal [1], commands.map { |name| first_keys.fetch(name) }.uniq
  end

  def test_what_does_not_fit_is_passed_on
    skip "redis-client checks commands first" unless IS_OLD
    [nil, [], [nil], 5].each do |commands|
      untraced = failure(commands)
      traced { assert_equal [untraced], [failure(commands)] }
    end
  end

  def test_untraced_no_objects
    needs_native
    old = Class.new { def process(_commands); end; prepend Tracepoint::Redis::Written }.new
    assert_no_objects { old.process(nil) }
    client = Class.new do
      def call(_command, _config); end
      def call_pipelined(_commands, _config); end
      prepend Tracepoint::Redis::Middleware
    end.new
    assert_no_objects { client.call(nil, nil) }
    assert_no_objects { client.call_pipelined(nil, nil) }
  end

  def test_neither_gem
    script = 'begin; require "tracepoint/redis"; rescue LoadError => e; puts e.message; end'
    assert_equal "tracepoint/redis needs the gem redis or redis-client\n", ruby(script, options: ["--disable-gems"])
  end

  private

  def traced(&block)
    tapping(Tracepoint::Redis::COMMAND, &block)
  end

  # Return command, key, and count.
  def values(tap, from)
    [tap.value(from, String), tap.value(from + 1, String), tap.value(from + 2, Integer)]
  end

  def failure(commands)
    @redis._client.process(commands)
  rescue StandardError => e
    e.class
  end
end
