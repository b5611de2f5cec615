# frozen_string_literal: true

# A shop that serves orders in several threads.
#
#   ruby -Iruby/lib examples/shop/shop.rb [--orders N | --seconds S] [--threads N] [--wait]
#
#   sudo rbtrace-py top --ps shop.rb
#   sudo rbtrace-py latency --ps shop.rb checkout
#   sudo rbtrace-py latency --ps shop.rb checkout --by sku
#   sudo rbtrace-py trace --ps shop.rb shop:order
#
# Without --orders or --seconds, it serves until it is stopped. With N orders (a multiple
# of 20), half are for tea, three in ten for coffee, and two in ten for cake. One in
# twenty, always a cake, is declined: its spans raise, and it does not fire
# shop:order.
require_relative "../handshake"
require_relative "catalogue"
require_relative "till"

module Shop
  # Hands out order numbers until the limit is reached.
  class Queue
    def initialize(orders, seconds)
      @orders = orders
      @ends = seconds && now + seconds
      @next = 0
      @lock = Mutex.new
    end

    # @return [Integer, nil]
    def shift
      @lock.synchronize do
        return if (@orders && @next >= @orders) || (@ends && now >= @ends)

        (@next += 1) - 1
      end
    end

    private

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end
  end

  module_function

  # @return [Array(Integer, Integer)] paid and declined
  def serve(queue, threads)
    workers = Array.new(threads) do |i|
      Thread.new do
        Thread.current.name = "till #{i}"
        work(queue, Till.new)
      end
    end
    workers.map(&:value).transpose.map(&:sum)
  end

  def work(queue, till)
    paid = declined = 0
    while (id = queue.shift)
      begin
        till.checkout(id, Catalogue.item_of(id))
        paid += 1
      rescue Declined
        declined += 1
      end
    end
    [paid, declined]
  end
end

orders = seconds = nil
threads = 3
shake = Handshake.new do |options|
  options.on("--orders N", Integer, "serve N orders") { |n| orders = n }
  options.on("--seconds S", Float, "serve for S seconds") { |s| seconds = s }
  options.on("--threads N", Integer, "serve in N threads (3)") { |n| threads = n }
end
shake.ready
paid, declined = Shop.serve(Shop::Queue.new(orders || shake.count, seconds), threads)
shake.done("#{paid + declined} orders, #{paid} paid, #{declined} declined")
