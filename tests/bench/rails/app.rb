# A Rails application of the usual kind in one file: a controller, two models in SQLite,
# a page of partials. Its request is what bench/rails.py measures.
ENV["RAILS_ENV"] = "production"

require "logger"
require "rails"
require "active_record/railtie"
require "action_controller/railtie"
require "action_view/railtie"

class Shop < Rails::Application
  config.root = __dir__
  config.eager_load = true
  config.cache_classes = true
  config.hosts.clear
  config.logger = Logger.new(IO::NULL)
  config.secret_key_base = "0" * 64
  routes.append { resources :items, only: :index }
end

Shop.initialize!

class Item < ActiveRecord::Base
  has_many :reviews

  def price
    format("%.2f", cents / 100.0)
  end
end

class Review < ActiveRecord::Base
  belongs_to :item
end

class ItemsController < ActionController::Base
  prepend_view_path File.join(__dir__, "views")

  def index
    @items = Item.includes(:reviews).order(:name).limit(20)
  end
end

module Seeds
  def self.plant
    ActiveRecord::Schema.verbose = false
    ActiveRecord::Schema.define do
      create_table(:items) { |t| t.string :name; t.integer :cents }
      create_table(:reviews) { |t| t.integer :item_id; t.integer :stars; t.string :text }
    end
    40.times do |number|
      item = Item.create!(name: "Tea #{number}", cents: 100 * number + 95)
      3.times { |stars| item.reviews.create!(stars: stars + 1, text: "Well, tea.") }
    end
  end
end
