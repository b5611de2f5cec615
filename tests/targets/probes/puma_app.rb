# frozen_string_literal: true

# Puma's configuration: two workers of one thread behind a socket in $PLACE. Each answers
# with its pid; /hold is answered after a write to the FIFO $PLACE/held. With
# AGENT=workers, only the workers load the agent; with PLUGIN=1 they have the gem's plugin.
# A plain `class Web` would belong to the configuration.
::Web = Class.new do
  def call(environment)
    File.read("#{ENV.fetch("PLACE")}/held") if environment["PATH_INFO"] == "/hold"
    [200, { "content-type" => "text/plain" }, [page]]
  end

  def page
    Process.pid.to_s
  end
end

on_worker_boot { require "tracepoint/agent" } if ENV["AGENT"] == "workers"
plugin :tracepoint if ENV["PLUGIN"]
workers 2
threads 1, 1
preload_app! false
environment "production"
bind "unix://#{ENV.fetch("PLACE")}/web.sock"
app Web.new
