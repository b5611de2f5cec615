# frozen_string_literal: true

require "test_helper"
require_relative "support/redis_server"
begin
  require "sidekiq/cli" # as in Sidekiq's own process, which has the server middleware
  require "sidekiq/api"
  require "tracepoint/sidekiq"
rescue LoadError
  nil # these tests are skipped without Sidekiq
end

# Sidekiq's own code fetches jobs from a Redis and runs them one by one.
class SidekiqTest < Minitest::Test
  RETURNED = 0
  RAISED = 1
  SECOND = 1_000_000_000

  def self.seen
    @seen ||= []
  end

  if defined?(::Sidekiq::Worker)
    class TallyJob
      include ::Sidekiq::Worker

      def perform(number)
        SidekiqTest.seen << number
        raise "on purpose" if number.negative?
      end
    end
  end

  def setup
    skip "no Sidekiq" unless Tracepoint.const_defined?(:Sidekiq, false)
    skip "no redis-server" unless RedisServer.installed?
    ::Sidekiq.logger.level = Logger::FATAL
    ::Redis.silence_deprecations = true if defined?(::Redis) # caused by Sidekiq 6
    ::Sidekiq.configure_server { |config| config.redis = { url: RedisServer.url } }
    ::Sidekiq.redis(&:flushall)
    SidekiqTest.seen.clear
  end

  def test_push
    tapping(Tracepoint::Sidekiq::PUSH) do |first, last|
      id = TallyJob.perform_async(1)
      arguments = ["SidekiqTest::TallyJob", "default", id, 1]
      assert_equal [1, *arguments], [first.hits, *values(first, 0, String, String, String, Integer)]
      assert_equal [1, RETURNED, *arguments], [last.hits, *values(last, 1, Integer, String, String, String, Integer)]
      assert_operator last.value(0, Integer), :>, 0
    end
    assert_equal 1, ::Sidekiq::Queue.new.size
  end

  def test_many_jobs_are_one_push
    tapping(Tracepoint::Sidekiq::PUSH) do |_, last|
      ids = ::Sidekiq::Client.push_bulk("class" => TallyJob, "queue" => "slow", "args" => [[1], [2], [3]])
      assert_equal [1, "slow", ids.first, 3], [last.hits, *values(last, 3, String, String, Integer)]
      TallyJob.perform_in(60, 4)
      assert_equal [2, 1], [last.hits, last.value(5, Integer)]
    end
    assert_equal [3, 1], [::Sidekiq::Queue.new("slow").size, ::Sidekiq::ScheduledSet.new.size]
  end

  def test_perform
    id = TallyJob.perform_async(1)
    pushed = now
    tapping(Tracepoint::Sidekiq::PERFORM) do |first, last|
      perform
      performed = now
      expected = ["SidekiqTest::TallyJob", "default", id]
      assert_equal [1, *expected, 0], [first.hits, *values(first, 0, String, String, String), first.value(4, Integer)]
      assert_equal [1, RETURNED, *expected, 0], [last.hits, *values(last, 1, Integer, String, String, String), last.value(6, Integer)]
      assert_includes 0..(performed - pushed + SECOND), first.value(3, Integer)
      assert_equal first.value(3, Integer), last.value(5, Integer)
    end
    assert_equal [1], SidekiqTest.seen
  end

  def test_the_time_in_the_queue
    job = { "class" => "X", "enqueued_at" => Time.now.to_f - 5 }
    assert_includes (5 * SECOND - 1000)..(60 * SECOND), queued(job)
    assert_equal 0, queued("enqueued_at" => Time.now.to_f + 5)
    [nil, "soon", Float::NAN, 12.5, 10**30, [], false].each { |other| assert_nil queued("enqueued_at" => other), other.inspect }
  end

  def test_retries
    TallyJob.perform_async(-1)
    tapping(Tracepoint::Sidekiq::PERFORM) do |_, last|
      [0, 1, 2].each do |retries|
        assert_raises(RuntimeError) { perform }
        assert_equal [retries + 1, RAISED, retries], [last.hits, last.value(1, Integer), last.value(6, Integer)]
        push_what_failed
      end
    end
    assert_equal [-1, -1, -1], SidekiqTest.seen
  end

  def test_active_job_is_called_by_its_own_class
    require "active_job"
    kind = active_job
    tapping(Tracepoint::Sidekiq::PUSH) { |_, last| [kind.perform_later(5), assert_equal("SidekiqTest::Receipt", last.value(2, String))] }
    tapping(Tracepoint::Sidekiq::PERFORM) do |_, last|
      perform("receipts")
      assert_equal ["SidekiqTest::Receipt", "receipts"], values(last, 2, String, String)
    end
    assert_equal [5], SidekiqTest.seen
  rescue LoadError
    skip "no ActiveJob"
  end

  def test_what_a_queue_may_hold
    [{}, { "class" => 5, "retry_count" => "many" }, { "class" => BasicObject.new }.freeze].each do |job|
      assert_equal :done, middle(job)
      tapping(Tracepoint::Sidekiq::PERFORM) do |first, last|
        assert_equal :done, middle(job)
        assert_equal [1, 1, RETURNED], [first.hits, last.hits, last.value(1, Integer)]
      end
    end
  end

  def test_a_push_of_nothing
    client = ::Sidekiq::Client.new
    [nil, [], [{}.freeze]].each do |payloads|
      untraced = failure { client.__send__(:raw_push, payloads) }
      tapping(Tracepoint::Sidekiq::PUSH) { assert_equal untraced, (failure { client.__send__(:raw_push, payloads) }) }
    end
  end

  def test_untraced_it_reads_nothing
    needs_native
    middleware = Tracepoint::Sidekiq::Perform.new
    assert_no_objects { middleware.call(nil, nil, "default") { :done } }
    client = Class.new { def raw_push(_payloads); end; prepend Tracepoint::Sidekiq::Push }.new
    assert_no_objects { client.__send__(:raw_push, nil) }
  end

  def test_it_is_registered_once
    middleware = configuration.server_middleware.map(&:klass)
    assert_equal [Tracepoint::Sidekiq::Perform], middleware.first(1)
    assert_equal 1, middleware.count(Tracepoint::Sidekiq::Perform)
  end

  def test_it_may_be_loaded_before_sidekiqs_own_program
    said = ruby(<<~RUBY, options: ["-rtracepoint/sidekiq", "-rsidekiq/cli", "-rtracepoint/testing"], verbose: false)
      events = Tracepoint::Testing.capture do
        configuration = Sidekiq.respond_to?(:default_configuration) ? Sidekiq.default_configuration : Sidekiq
        configuration.server_middleware.invoke(nil, { "class" => "Tally" }, "default") { :done }
      end
      events.each { |event| puts [event.name, *event.arguments.values_at(:job, :queue)].join(" ") }
    RUBY
    assert_equal "perform__begin Tally default\nperform__end Tally default\n", said
  end

  private

  # In Sidekiq 6, the module Sidekiq is the configuration.
  def configuration
    ::Sidekiq.respond_to?(:default_configuration) ? ::Sidekiq.default_configuration : ::Sidekiq
  end

  # Fetch a job and run it, like a thread of Sidekiq.
  def perform(queue = "default")
    processor(queue).__send__(:process_one)
  end

  def processor(queue)
    if ::Sidekiq.respond_to?(:default_configuration)
      ::Sidekiq::Processor.new(configuration.capsule("test-#{queue}") { |it| it.queues = [queue] })
    else
      fetch = ::Sidekiq::BasicFetch.new(queues: [queue], strict: true)
      ::Sidekiq::Processor.new(nil, ::Sidekiq.options.merge(fetch: fetch))
    end
  end

  # Sidekiq waits for seconds before a retry. Hand such jobs to its scheduler at once.
  def push_what_failed
    ::Sidekiq.redis { |redis| redis.zrange("retry", 0, -1).each { |job| redis.zadd("retry", "0", job) } }
    ::Sidekiq::Scheduled::Enq.new(*(configuration unless configuration == ::Sidekiq)).enqueue_jobs
  end

  def middle(job)
    Tracepoint::Sidekiq::Perform.new.call(nil, job, "default") { :done }
  end

  def queued(job)
    tapping(Tracepoint::Sidekiq::PERFORM) do |first, _|
      middle(job)
      return first.value(3, Integer)
    end
  end

  def active_job
    return Receipt if self.class.const_defined?(:Receipt, false)

    ActiveJob::Base.logger = nil
    self.class.const_set(:Receipt, Class.new(ActiveJob::Base) do
      self.queue_adapter = :sidekiq
      queue_as :receipts
      define_method(:perform) { |number| SidekiqTest.seen << number }
    end)
  end

  def failure
    yield
  rescue StandardError => e
    e.class
  end

  # Return values of these types, starting at an operand.
  def values(tap, from, *types)
    types.each_with_index.map { |type, i| tap.value(from + i, type) }
  end

  def now
    Process.clock_gettime(Process::CLOCK_REALTIME, :nanosecond)
  end
end
