# frozen_string_literal: true

require "tracepoint"
require_relative "argument_reader"

# Version 5 of the gem redis and Sidekiq 7 use the gem redis-client.
%w[redis redis-client].each do |gem|
  require gem
rescue LoadError
  nil
end
raise LoadError, "tracepoint/redis needs the gem redis or redis-client" unless defined?(Redis) || defined?(RedisClient)

module Tracepoint
  # Commands of the gems redis and redis-client as spans `redis:command`, from writing the
  # command to reading the reply. If Redis rejects a command, redis-client raises inside
  # the span, and version 4 of redis raises after it.
  #
  #   require "tracepoint/redis"
  #
  # Arguments: `command`, such as `GET`, or `PIPELINE` or `MULTI` for several commands
  # written at once; `key`, the first key, for the commands of {WITH_KEY}; and `count`,
  # the number of commands. The arguments never contain values.
  module Redis
    COMMAND = Tracepoint.define_span(:command, { command: String, key: String, count: Integer }, provider: :redis)
    ARGUMENTS = ArgumentReader.new(COMMAND)
    private_constant :ARGUMENTS

    # Commands whose first argument is a key. Other commands may start with a secret.
    WITH_KEY = %w[
      APPEND BLPOP BRPOP DECR DECRBY DEL EXISTS EXPIRE EXPIREAT GET GETDEL GETEX GETRANGE GETSET
      HDEL HEXISTS HGET HGETALL HINCRBY HKEYS HLEN HMGET HMSET HSCAN HSET HSETNX HVALS INCR INCRBY INCRBYFLOAT
      LINDEX LLEN LPOP LPUSH LRANGE LREM LSET LTRIM MGET MSET PERSIST PEXPIRE PSETEX PTTL RENAME RPOP RPOPLPUSH RPUSH
      SADD SCARD SDIFF SET SETEX SETNX SINTER SISMEMBER SMEMBERS SPOP SRANDMEMBER SREM SSCAN STRLEN SUNION
      TTL TYPE UNLINK WATCH XADD XLEN XRANGE XREVRANGE ZADD ZCARD ZCOUNT ZINCRBY ZRANGE ZRANGEBYSCORE ZRANK ZREM
      ZREMRANGEBYRANK ZREMRANGEBYSCORE ZREVRANGE ZREVRANGEBYSCORE ZREVRANK ZSCAN ZSCORE
    ].freeze

    # Prepended to Redis::Client of version 4 of the gem redis.
    # @api private
    module Written
      def process(commands)
        arguments = ARGUMENTS.read { Redis.describe(commands) }
        COMMAND.measure(*arguments) { super }
      end
    end

    # Middleware for RedisClient.
    # @api private
    module Middleware
      def call(command, _config)
        arguments = ARGUMENTS.read { Redis.describe([command]) }
        COMMAND.measure(*arguments) { super }
      end

      def call_pipelined(commands, _config)
        arguments = ARGUMENTS.read { Redis.describe(commands) }
        COMMAND.measure(*arguments) { super }
      end
    end

    # @api private
    # @return [Array] the span's arguments
    def self.describe(commands)
      name, key = commands.first
      name = name.to_s.upcase
      return [name == "MULTI" ? name : "PIPELINE", nil, commands.size] if commands.size > 1

      key, = key if key.is_a?(Array)
      [name, (key if WITH_KEY.include?(name) && [String, Symbol].include?(key.class)), 1]
    end

    ::Redis::Client.prepend(Written) if defined?(::Redis::Client) && ::Redis::Client.method_defined?(:process)
    ::RedisClient.register(Middleware) if defined?(::RedisClient)
  end
end
