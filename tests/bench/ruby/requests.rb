# frozen_string_literal: true

require "rack/mock"

# Serves pages of the Rails application of bench/rails without a server.
module Requests
  TRIES = 3
  COUNT = 4

  class << self
    # Start the application, and serve until its caches are full.
    def prepare
      require_relative "../rails/app"
      @environment = Rack::MockRequest.env_for("http://localhost/items")
      Seeds.plant unless Item.table_exists?
      30.times { serve }
    end

    # CPU of a request in ns: the least of some tries, without collections.
    def cpu
      GC.start
      GC.disable
      Array.new(TRIES) { timed { COUNT.times { serve } } }.min / COUNT
    ensure
      GC.enable
    end

    # Objects that a request makes.
    def objects
      serve
      before = GC.stat(:total_allocated_objects)
      serve
      GC.stat(:total_allocated_objects) - before
    end

    private

    def serve
      status, _, body = Shop.call(@environment.dup)
      body.each { |_| }
      body.close if body.respond_to?(:close)
      raise "status #{status}" unless status == 200
    end

    def timed
      before = Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID, :nanosecond)
      yield
      Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID, :nanosecond) - before
    end
  end
end
