# The bench's Rails application with 5,000 methods more: 50 controllers of 20 actions, and as
# many models of 80 methods. An action calls four of its model's; with ?slow=1 it takes long.
require_relative "../../bench/rails/app"

CONTROLLERS, ACTIONS, PARTS = 50, 20, 3

CONTROLLERS.times do |number|
  model = Object.const_set("Thing#{number}", Class.new)
  controller = Object.const_set("Many#{number}Controller", Class.new(ActionController::Base))
  ACTIONS.times do |action|
    parts = Array.new(PARTS) { |part| "part#{(PARTS * action) + part}" }
    parts.each_with_index do |name, part|
      model.class_eval("def #{name}; #{10**(part + 1)}.times { |n| n }; end", __FILE__, __LINE__)
    end
    model.class_eval("def sum#{action}; #{parts.join(" + ")}; end", __FILE__, __LINE__)
    controller.class_eval(<<~RUBY, __FILE__, __LINE__ + 1)
      def action#{action}
        sleep 0.25 if params[:slow]
        render plain: Thing#{number}.new.sum#{action}.to_s
      end
    RUBY
  end
end

Shop.routes.draw do
  resources :items, only: :index
  CONTROLLERS.times do |number|
    ACTIONS.times { |action| get "many#{number}/action#{action}", to: "many#{number}#action#{action}" }
  end
end

Seeds.plant unless Item.table_exists?
run Shop
