directory File.expand_path(__dir__)
bind ENV.fetch("SHOP_BIND", "tcp://127.0.0.1:9292")
environment "production"
workers 2
threads 3, 3
preload_app!
plugin :tracepoint
