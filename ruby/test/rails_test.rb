# frozen_string_literal: true

require "test_helper"

# The position of the middleware in various Rails applications.
class RailsTest < Minitest::Test
  def test_behind_the_request_id
    names = stack("")
    assert_equal "ActionDispatch::RequestId", names[names.index("Tracepoint::Rack") - 1]
    assert_equal 1, names.count("Tracepoint::Rack")
  end

  def test_a_replaced_request_id
    names = stack("config.middleware.swap ActionDispatch::RequestId, Class.new(ActionDispatch::RequestId), header: \"X-Id\"")
    assert_equal "Tracepoint::Rack", names.first
  end

  def test_a_deleted_request_id
    assert_equal "Tracepoint::Rack", stack("config.middleware.delete ActionDispatch::RequestId").first
  end

  def test_placed_by_the_application
    names = stack("config.middleware.use Tracepoint::Rack")
    assert_equal "Tracepoint::Rack", names.last
    assert_equal 1, names.count("Tracepoint::Rack")
  end

  def test_deleted_by_the_application
    refute_includes stack("config.middleware.delete Tracepoint::Rack"), "Tracepoint::Rack"
  end

  private

  # Return the names of an application's middleware, outermost first. It must answer.
  def stack(configuration)
    _, status = Open3.capture2e(RbConfig.ruby, "-rrails", "-raction_controller/railtie", "-e", "")
    skip "no Rails: scripts/setup.sh --test installs it" unless status.success?
    ruby(<<~RUBY, verbose: false).lines(chomp: true)
      require "logger"
      require "action_controller/railtie"
      require "rack/mock"
      require "tracepoint/rails"
      class App < Rails::Application
        config.eager_load = false
        config.hosts.clear
        config.secret_key_base = "x" * 30
        config.logger = Logger.new(IO::NULL)
        #{configuration}
        routes.append { get "/", to: ->(_) { [200, {}, ["ok"]] } }
      end
      App.initialize!
      raise "no answer" unless Rack::MockRequest.new(App).get("/").body == "ok"
      puts App.config.middleware.map(&:name)
    RUBY
  end
end
