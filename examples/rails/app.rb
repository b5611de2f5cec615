# A Rails application in one file: a shop with a list of items, a page per item, orders, a
# slow report, and jobs in Sidekiq. The require of tracepoint/rails adds the probes. VISIT is
# a span of the application's own. The database, the log, and the socket of Redis are in
# SHOP_FOLDER, by default tmp/ beside this file.
ENV["RAILS_ENV"] ||= "production"
ENV["SHOP_FOLDER"] ||= File.join(__dir__, "tmp")

require "fileutils"
require "rails"
require "active_record/railtie"
require "active_job/railtie"
require "action_controller/railtie"
require "sidekiq"
require "sidekiq/rails"
require "tracepoint/rails"

class Shop < Rails::Application
  config.root = __dir__
  config.eager_load = true
  config.cache_classes = true
  config.hosts.clear
  config.log_level = :debug
  config.colorize_logging = false
  config.paths["log"] = File.join(ENV.fetch("SHOP_FOLDER"), "shop.log")
  config.secret_key_base = "0" * 64
  config.active_job.queue_adapter = :sidekiq
  routes.append do
    resources :items, only: %i[index show]
    resources :orders, only: :create
    resources :reports, only: :index
    resources :statements, only: :create
  end
end

FileUtils.mkdir_p(ENV.fetch("SHOP_FOLDER"))
Redis.silence_deprecations = true if defined?(Redis) # caused by Sidekiq 6
redis = { url: "unix://#{ENV.fetch("SHOP_FOLDER")}/redis.sock" }
Sidekiq.configure_client { |config| config.redis = redis }
Sidekiq.configure_server { |config| config.redis = redis }
Shop.initialize!

class Item < ActiveRecord::Base
  has_many :orders
end

class Order < ActiveRecord::Base
  belongs_to :item
end

class ReceiptJob < ActiveJob::Base
  def perform(order_id)
    Order.find(order_id).item.name
  end
end

class RestockJob < ActiveJob::Base
  queue_as :stock

  def perform(item_id, count)
    Item.find(item_id).orders.sum(:count) + count
  end
end

class StatementJob < ActiveJob::Base
  SECONDS = 0.8

  # The bank is slow as well.
  def perform(tenant)
    sleep SECONDS
    logger.info("#{tenant}: #{Order.count} orders")
  end
end

VISIT = Tracepoint.define_span(:visit, { tenant: String }, provider: :shop)

# Measures requests by tenant, which the shop knows and Rails does not.
module Tenants
  def self.included(controller)
    controller.around_action { |of, action| VISIT.measure(of.tenant) { action.call } }
  end

  def tenant
    request.headers["X-Tenant"]
  end
end

class ItemsController < ActionController::Base
  include Tenants
  prepend_view_path File.join(__dir__, "views")

  rescue_from(ActiveRecord::RecordNotFound) { head :not_found }

  def index
    @items = Item.includes(:orders).order(:name).limit(20)
  end

  def show
    @item = Item.find(params[:id])
    @again = Item.find(params[:id]) # from the query cache
  end
end

class OrdersController < ActionController::API
  include Tenants

  # The sqlite3 gem keeps the GVL while it waits for the database's lock, so the thread that
  # holds the lock could not continue.
  WRITING = Mutex.new

  def create
    raise ArgumentError, "a negative number" if params[:count].to_i.negative?

    order = WRITING.synchronize { Order.create!(item_id: params[:item_id], count: params[:count]) }
    ReceiptJob.perform_later(order.id)
    RestockJob.perform_later(order.item_id, order.count) if order.count > 1
    render json: { id: order.id }, status: :created
  end
end

class ReportsController < ActionController::API
  include Tenants

  SECONDS = 1.2

  def index
    render json: { orders: ask_the_warehouse }
  end

  private

  # The warehouse is slow.
  def ask_the_warehouse
    sleep SECONDS
    Order.count
  end
end

class StatementsController < ActionController::API
  include Tenants

  def create
    StatementJob.perform_later(tenant)
    head :accepted
  end
end

module Seeds
  def self.plant
    ActiveRecord::Base.connection.execute("PRAGMA journal_mode = WAL") # two workers write
    ActiveRecord::Schema.verbose = false
    ActiveRecord::Schema.define do
      create_table(:items) { |t| t.string :name; t.integer :cents }
      create_table(:orders) { |t| t.integer :item_id; t.integer :count }
    end
    40.times { |number| Item.create!(name: "Tea #{number}", cents: 100 * number + 95) }
  end
end
