# frozen_string_literal: true

require "test_helper"

# The files for frameworks, without these frameworks.
class FrameworksTest < Minitest::Test
  WITHOUT_GEMS = '$LOAD_PATH.reject! { |folder| folder.match?(/vendor|site/) }'
  LIBRARIES = { "rack" => "rack/body_proxy", "notifications" => "active_support", "rails" => "rails/railtie", "sidekiq" => "sidekiq",
                "puma" => "puma" }.freeze

  def test_the_error_says_what_is_missing
    LIBRARIES.each do |name, library|
      script = %(#{WITHOUT_GEMS}; begin; require "tracepoint/#{name}"; rescue LoadError => e; puts e.message; end)
      assert_equal "cannot load such file -- #{library}\n", ruby(script, options: ["--disable-gems"])
    end
  end
end
