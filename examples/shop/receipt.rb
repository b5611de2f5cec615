# frozen_string_literal: true

require "digest/sha2" # loaded here, not by several threads at once
require "erb"
require "json"

module Shop
  # A page that lists the latest orders of a till. Rendering it uses the CPU.
  class Receipt
    PAGE = ERB.new(<<~HTML)
      <h1>Order <%= @id %></h1>
      <table>
      <% @items.each do |item| %>
        <tr><td><%= ERB::Util.html_escape(item.sku) %></td><td><%= price(item.cents) %></td></tr>
      <% end %>
      </table>
      <p>Total: <%= price(total) %></p>
    HTML
    PAGE.def_method(self, "page", __FILE__)

    def initialize(id, items)
      @id = id
      @items = items.sort_by(&:sku)
    end

    def total
      @items.sum(&:cents)
    end

    def price(cents)
      format("%.2f", cents / 100.0)
    end

    def entry
      JSON.generate(id: @id, total: total, page: page)
    end
  end

  # Receipts in order, each with a slow checksum of all receipts before it.
  class Books
    def initialize
      @latest = []
      @checksum = ""
    end

    def write(id, item)
      @latest.unshift(item).slice!(4..)
      sign(Receipt.new(id, @latest).entry)
    end

    private

    def sign(entry)
      100.times { @checksum = Digest::SHA256.hexdigest(@checksum + entry) }
    end
  end
end
