require_relative "app"

Seeds.plant unless Item.table_exists?
run Shop
