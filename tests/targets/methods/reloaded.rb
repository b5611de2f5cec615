# frozen_string_literal: true

# A class that is reloaded, as in development: by Rails, or as Zeitwerk does it for Rails.
# A line of its input is Ruby code to run.
#
#   reloaded.rb FOLDER [rails]
$LOAD_PATH.unshift File.expand_path("../../../ruby/lib", __dir__)
require "fileutils"
require "tracepoint/agent"

FOLDER = ARGV.first
MODEL = File.join(FOLDER, "app/models/thing.rb")

def write(number)
  File.write(MODEL, "class Thing; def run; #{number}; end; def self.find; new; end; end\n")
end

FileUtils.mkdir_p(File.dirname(MODEL))
write(0)

if ARGV[1]
  ENV["RAILS_ENV"] = "development"
  require "logger"
  require "rails"
  require "action_controller/railtie"

  class Shop < Rails::Application
    config.load_defaults Rails::VERSION::STRING.to_f # Zeitwerk, which leaves autoloads
    config.root = FOLDER
    config.eager_load = false
    config.cache_classes = false
    config.hosts.clear
    config.logger = Logger.new(IO::NULL)
    config.secret_key_base = "0" * 64
  end
  Shop.initialize!

  def forget
    Rails.application.reloader.reload!
  end
else
  def forget
    Object.send(:remove_const, :Thing)
    $LOADED_FEATURES.delete(MODEL)
    Object.autoload(:Thing, MODEL)
  end
  Object.autoload(:Thing, MODEL)
end

def reload(number)
  write(number)
  forget
end

$stdout.sync = true
puts "ready"
while (line = $stdin.gets)
  puts "done #{eval(line)}"
end
