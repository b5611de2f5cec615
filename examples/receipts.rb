# frozen_string_literal: true

# Prints receipts as fast as it can, in two threads: work to profile.
#
#   ruby examples/receipts.rb [--count N]
#
#   sudo rbtrace-py top PID
#   sudo rbtrace-py stacks PID -d 5 -o receipts.svg
require_relative "handshake"
require "digest"
require "erb"
require "json"

# An order's items, as a page for the customer and a line of the shop's books.
class Receipt
  PAGE = ERB.new(<<~HTML)
    <h1>Order <%= @id %></h1>
    <table>
    <% @items.each do |name, cents| %>
      <tr><td><%= ERB::Util.html_escape(name) %></td><td><%= price(cents) %></td></tr>
    <% end %>
    </table>
    <p>Total: <%= price(total) %></p>
  HTML
  PAGE.def_method(self, "page", __FILE__)

  def initialize(id, items)
    @id = id
    @items = items.sort_by(&:first)
  end

  def total
    @items.sum(&:last)
  end

  def price(cents)
    format("%.2f", cents / 100.0)
  end

  def entry
    JSON.generate(id: @id, items: @items, total: total, page: page)
  end
end

# Writes entries with a checksum that covers all before it.
class Books
  attr_reader :entries

  def initialize
    @entries = 0
    @checksum = ""
  end

  def write(entry)
    @checksum = Digest::SHA256.hexdigest(@checksum + entry)
    @entries += 1
  end
end

ITEMS = { "tea" => 250, "coffee" => 320, "cake & cream" => 480, "water" => 90 }.to_a.freeze

def print_receipts(count)
  books = Books.new
  (0...count).each { |id| books.write(Receipt.new(id, ITEMS.rotate(id)).entry) }
  books.entries
end

shake = Handshake.new
shake.ready
printed = Array.new(2) { Thread.new { print_receipts(shake.count || Float::INFINITY) } }.sum(&:value)
shake.done("#{printed} receipts")
