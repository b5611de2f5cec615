# Answers with the pid of the worker: see forked_server.rb.
require "tracepoint/rack"

before = Tracepoint.define(:before, {}, provider: :web)

use Tracepoint::Rack
run(lambda do |_environment|
  before.fire
  Tracepoint.fire("web:after")
  [200, {"content-type" => "text/plain"}, [Process.pid.to_s]]
end)
