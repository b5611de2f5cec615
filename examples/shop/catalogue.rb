# frozen_string_literal: true

module Shop
  Item = Struct.new(:sku, :cents, :milliseconds)

  # The items on sale, and the time it takes to serve them.
  module Catalogue
    TEA = Item.new("tea", 250, 2).freeze
    COFFEE = Item.new("coffee", 320, 4).freeze
    CAKE = Item.new("cake", 480, 15).freeze

    # Ten orders: five for tea, three for coffee, and two for cake.
    TURNS = [TEA, COFFEE, TEA, CAKE, TEA, COFFEE, TEA, COFFEE, TEA, CAKE].freeze

    def self.item_of(order_id)
      TURNS[order_id % TURNS.size]
    end
  end
end
