# frozen_string_literal: true

require "test_helper"
require "rubygems"

# The ways to install the gem, each from a copy of the checkout.
class PackagingTest < Minitest::Test
  CLEAN = { "RUBYOPT" => nil, "RUBYLIB" => nil, "BUNDLE_GEMFILE" => nil, "GEM_PATH" => nil,
            "BUNDLE_SILENCE_ROOT_WARNING" => "1", "BUNDLE_USER_HOME" => nil, "GIT_CONFIG_NOSYSTEM" => "1" }.freeze
  CHECK = 'p [defined?(Tracepoint.fire) && Tracepoint.fire(:packaged, 1, "x"), Tracepoint.supported?]'

  def setup
    skip "minitest's own Ruby has no extension to compare with" unless Tracepoint.supported?
    @dir = Dir.mktmpdir("tracepoint")
    @tree = File.join(@dir, "tree")
    copy_tree
    @home = File.join(@dir, "home")
    @env = CLEAN.merge("HOME" => @home, "GEM_HOME" => @home, "BUNDLE_PATH" => File.join(@dir, "bundle"))
  end

  def teardown
    FileUtils.rm_rf(@dir) if @dir
  end

  def test_installed_gem
    file = build_gem
    run_in(@dir, *install(file))
    check run_in(@dir, RbConfig.ruby, "-w", "-e", "require 'tracepoint'; #{CHECK}")
    check run_in(@dir, RbConfig.ruby, "-w", "-e", "require 'tracepoint-usdt'; #{CHECK}")
    assert_equal "true\n", run_in(@dir, RbConfig.ruby, "-rtracepoint", "-e", "puts Tracepoint.benchmark.supported")
    loaded = run_in(@dir, RbConfig.ruby, "-e", 'require "tracepoint/agent"; puts $LOADED_FEATURES.grep(/agent_hook/)')
    assert_match(%r{\A#{Regexp.escape(File.realpath(@home))}/.*/agent_hook\.so\n\z}, loaded)
  end

  # The gem installs as a no-op, and prints how to build the extension later.
  def test_installed_without_a_compiler
    install_without_extension("PATH" => bare_path("make"))
  end

  def test_installed_without_headers
    install_without_extension(with_config("rubyhdrdir" => "/nonexistent"))
  end

  # Before the version in Ruby 4.0, RubyGems always ran make.
  def test_installed_without_make
    bare = { "PATH" => bare_path }
    require "rubygems/ext"
    return install_without_extension(bare) if Gem::Ext::Builder.const_defined?(:NoMakefileError)

    output, status = Open3.capture2e(@env.merge(bare), *install(build_gem))
    refute_predicate status, :success?
    assert_match(/make is missing \(apt-get install make\).*cannot install it without make/m, output)
  end

  # A static Ruby refers to a library that slim installations omit.
  def test_installed_without_the_static_library
    clean = @env
    @env = @env.merge(with_config("LIBRUBYARG" => "-lruby-missing-static"))
    run_in(@dir, *install(build_gem))
    @env = clean
    check run_in(@dir, RbConfig.ruby, "-w", "-e", "require 'tracepoint'; #{CHECK}")
  end

  def test_contents
    files = run_in(@dir, RbConfig.ruby, "-rrubygems/package", "-e", "puts Gem::Package.new(ARGV[0]).contents", build_gem).split
    %w[LICENSE README.md lib/tracepoint.rb lib/tracepoint-usdt.rb lib/puma/plugin/tracepoint.rb
       lib/tracepoint/benchmark/child.rb sig/tracepoint.rbs
       ext/libstapsdt/libstapsdt.h ext/libstapsdt/ruby/extconf.rb ext/agent/sources.txt
       ext/extension.rb].each { |path| assert_includes files, path }
    File.readlines(File.join(ROOT, "ext/agent/sources.txt"), chomp: true).each { |path| assert_includes files, "ext/agent/#{path}" }
    Dir.children(File.join(ROOT, "ruby/lib/tracepoint")).grep(/\.rb\z/).each { |name| assert_includes files, "lib/tracepoint/#{name}" }
    assert_empty files.grep(%r{\.(so|o|a)\z|\btests?/|_test|build})
  end

  def test_bundler_path
    bundled(%(gem "tracepoint-usdt", path: "#{@tree}/gem"))
  end

  def test_bundler_git
    skip "no git" unless system("git", "--version", out: File::NULL, err: File::NULL)
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    run_in(@tree, *git, "init", "-q")
    run_in(@tree, *git, "add", "-A")
    run_in(@tree, *git, "commit", "-qm", "tree")
    FileUtils.rm_rf(native_of(@tree))
    bundled(%(gem "tracepoint-usdt", git: "file://#{@tree}", glob: "gem/*.gemspec"))
  end

  private

  def copy_tree
    %w[ruby gem ext].each do |top|
      Dir.glob("**/*", File::FNM_DOTMATCH, base: File.join(ROOT, top)).each { |path| copy(File.join(top, path)) }
      copy_links(top)
    end
    # As in a checkout where this Ruby's extension was built.
    FileUtils.mkdir_p(File.dirname(native_of(@tree)))
    FileUtils.cp_r(native_of(ROOT), native_of(@tree))
  end

  def copy(path)
    from = File.join(ROOT, path)
    return if File.symlink?(from) || !File.file?(from) || path =~ %r{/build/|/native/|\.(so[.\d]*|o|a|gem|lock)\z}

    FileUtils.mkdir_p(File.dirname(File.join(@tree, path)))
    FileUtils.cp(from, File.join(@tree, path))
  end

  def copy_links(top)
    Dir.children(File.join(ROOT, top)).each do |name|
      from = File.join(ROOT, top, name)
      File.symlink(File.readlink(from), File.join(@tree, top, name)) if File.symlink?(from)
    end
  end

  def native_of(tree)
    File.join(tree, "ruby/lib/tracepoint/native")
  end

  def build_gem
    output = run_in(File.join(@tree, "gem"), tool("gem"), "build", "tracepoint-usdt.gemspec")
    refute_match(/WARNING/, output)
    Dir[File.join(@tree, "gem/*.gem")].first || flunk("gem build built nothing")
  end

  def bundled(line)
    skip "no bundler" unless File.exist?(tool("bundle"))
    app = File.join(@dir, "app")
    FileUtils.mkdir_p(app)
    # Without a source, because only this gem is needed.
    File.write(File.join(app, "Gemfile"), "#{line}\n")
    run_in(app, tool("bundle"), "install")
    check run_in(app, tool("bundle"), "exec", RbConfig.ruby, "-w", "-e", "require 'tracepoint'; #{CHECK}")
    check run_in(app, tool("bundle"), "exec", RbConfig.ruby, "-w", "-e", "require 'bundler/setup'; Bundler.require; #{CHECK}")
  end

  def tool(name)
    suffix = RbConfig::CONFIG["ruby_install_name"].delete_prefix("ruby")
    versioned = File.join(RbConfig::CONFIG["bindir"], name + suffix)
    File.exist?(versioned) ? versioned : File.join(RbConfig::CONFIG["bindir"], name)
  end

  def install(file)
    [tool("gem"), "install", "--local", "--no-document", "--force", file]
  end

  def install_without_extension(env)
    file = build_gem
    clean = @env
    @env = @env.merge(env)
    run_in(@dir, *install(file))
    output = run_in(@dir, RbConfig.ruby, "-e", "require 'tracepoint'; #{CHECK}")
    assert_match(/no extension, so no probes.*; `gem pristine tracepoint-usdt` builds it/, output)
    assert_match(/^\[false, false\]$/, output)
    @env = clean
    run_in(@dir, tool("gem"), "pristine", "tracepoint-usdt")
    check run_in(@dir, RbConfig.ruby, "-w", "-e", "require 'tracepoint'; #{CHECK}")
  end

  # Return an environment in which Ruby's configuration has these values.
  def with_config(values)
    file = File.join(@dir, "config.rb")
    File.write(file, <<~RUBY)
      require "rbconfig"
      RbConfig::CONFIG.update(#{values.inspect})
    RUBY
    { "RUBYOPT" => "-r#{file}" }
  end

  # Return a PATH with a shell but no compiler.
  def bare_path(*more)
    bin = File.join(@dir, "bin")
    FileUtils.mkdir_p(bin)
    (%w[sh rm mkdir install cp env] + more).each do |name|
      found = ENV["PATH"].split(":").map { |dir| File.join(dir, name) }.find { |path| File.executable?(path) }
      File.symlink(found, File.join(bin, name)) if found
    end
    bin
  end

  def run_in(dir, *command)
    output, status = Open3.capture2e(@env, *command, chdir: dir)
    assert status.success?, "#{command.join(" ")}\n#{output}"
    output
  end

  def check(output)
    assert_match(/^\[false, true\]$/, output)
  end
end
