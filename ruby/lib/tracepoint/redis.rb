# frozen_string_literal: true

require_relative "../tracepoint"
require_relative "argument_reader"
require "redis"

unless Redis::Client.method_defined?(:process)
  raise LoadError, "tracepoint/redis needs the gem redis 4, not #{Redis::VERSION}, which stands on redis-client"
end

module Tracepoint
  # Commands of the gem redis (4.x) as spans `redis:command`, from when they are written
  # until their reply is read.
  #
  #   require "tracepoint/redis"
  #
  # Arguments: `command`, as `GET`, or `PIPELINE` or `MULTI` of several that are written
  # at once; `key`, the first one's, of {WITH_KEY}; and `count`, the number of commands.
  # Values are never in it.
  module Redis
    COMMAND = Tracepoint.define_span(:command, { command: String, key: String, count: Integer }, provider: :redis)
    ARGUMENTS = ArgumentReader.new(COMMAND)
    private_constant :ARGUMENTS

    # Commands whose first argument is a key: that of others may be a secret.
    WITH_KEY = %w[
      APPEND BLPOP BRPOP DECR DECRBY DEL EXISTS EXPIRE EXPIREAT GET GETDEL GETEX GETRANGE GETSET
      HDEL HEXISTS HGET HGETALL HINCRBY HKEYS HLEN HMGET HMSET HSCAN HSET HSETNX HVALS INCR INCRBY INCRBYFLOAT
      LINDEX LLEN LPOP LPUSH LRANGE LREM LSET LTRIM MGET MSET PERSIST PEXPIRE PSETEX PTTL RENAME RPOP RPOPLPUSH RPUSH
      SADD SCARD SDIFF SET SETEX SETNX SINTER SISMEMBER SMEMBERS SPOP SRANDMEMBER SREM SSCAN STRLEN SUNION
      TTL TYPE UNLINK WATCH XADD XLEN XRANGE XREVRANGE ZADD ZCARD ZCOUNT ZINCRBY ZRANGE ZRANGEBYSCORE ZRANK ZREM
      ZREMRANGEBYRANK ZREMRANGEBYSCORE ZREVRANGE ZREVRANGEBYSCORE ZREVRANK ZSCAN ZSCORE
    ].freeze

    # For Redis::Client.
    # @api private
    module Written
      def process(commands)
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

    ::Redis::Client.prepend(Written)
  end
end
