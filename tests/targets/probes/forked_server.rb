# Configuration of Puma and of Unicorn: two workers behind a socket in $PLACE. With
# PRELOAD=1, the parent loads the application before it forks, so that web:before and
# rack:request exist at the fork. Otherwise the parent has no probes, and each worker
# defines its own. Each worker defines web:after after the fork.
place = ENV.fetch("PLACE")
preloads = ENV["PRELOAD"] == "1"
define = lambda do
  require "tracepoint"
  Tracepoint.define(:after, {}, provider: :web)
end

if respond_to?(:worker_processes) # Unicorn
  worker_processes 2
  preload_app preloads
  listen "#{place}/web.sock"
  after_fork { |_server, _worker| define.call }
else
  workers 2
  threads 1, 1
  preload_app! preloads
  environment "production"
  bind "unix://#{place}/web.sock"
  rackup File.join(__dir__, "forked_app.ru")
  on_worker_boot { define.call }
end
