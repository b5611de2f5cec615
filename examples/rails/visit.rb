# frozen_string_literal: true

# Visitors of the shop, two for each of three tenants, until Ctrl-C. Visitors of acme also
# request reports and statements. All set the header X-Request-Start, as a proxy does.
require "net/http"

VISITORS = 2
SHOP = URI(ENV.fetch("SHOP_URL", "http://127.0.0.1:9292"))

def visit(shop, tenant, path, form = nil)
  request = form ? Net::HTTP::Post.new(path) : Net::HTTP::Get.new(path)
  request.form_data = form if form
  request["X-Tenant"] = tenant
  request["X-Request-Start"] = format("t=%.6f", Time.now.to_f)
  shop.request(request)
end

def ask_for_much(shop, tenant)
  3.times { visit(shop, tenant, "/statements", {}) }
  visit(shop, tenant, "/reports")
end

# Retries while the shop is starting.
def connect(&visit)
  Net::HTTP.start(SHOP.host, SHOP.port, &visit)
rescue Errno::ECONNREFUSED
  sleep 0.2
  retry
end

def stay(tenant, shop)
  (1..).each do |round|
    visit(shop, tenant, "/items")
    visit(shop, tenant, "/items/#{round % 40 + 1}")
    visit(shop, tenant, "/orders", item_id: round % 40 + 1, count: round % 2 + 1)
    ask_for_much(shop, tenant) if tenant == "acme" && (round % 8).zero?
    sleep 0.2
  end
end

visitors = %w[acme bazaar corner].flat_map do |tenant|
  Array.new(VISITORS) { Thread.new { connect { |shop| stay(tenant, shop) } } }
end
trap("INT") { exit }
visitors.each(&:join)
