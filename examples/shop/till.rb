# frozen_string_literal: true

require "tracepoint"
require_relative "receipt"

module Shop
  class Declined < StandardError; end

  # Takes orders and payments: one span per order, one inside it for the payment,
  # and an event when the order is complete.
  class Till
    CHECKOUT = Tracepoint.define_span(:checkout, { id: Integer, sku: String }, provider: :shop)
    PAYMENT = Tracepoint.define_span(:payment, { id: Integer, cents: Integer, method: Symbol }, provider: :shop)
    ORDER = Tracepoint.define(:order, { id: Integer, sku: String, total: Float, gift: :bool }, provider: :shop)

    METHODS = %i[card cash voucher].freeze

    def initialize
      @books = Books.new
    end

    # @raise [Declined] one order in twenty
    def checkout(id, item)
      CHECKOUT.measure(id, item.sku) do
        sleep(item.milliseconds / 1000.0)
        pay(id, item)
        ORDER.fire { [id, item.sku, item.cents / 100.0, (id % 7).zero?] }
      end
      @books.write(id, item)
    end

    private

    def pay(id, item)
      PAYMENT.measure(id, item.cents, METHODS[id % METHODS.size]) do
        sleep 0.001
        raise Declined, "order #{id}" if id % 20 == 19
      end
    end
  end
end
