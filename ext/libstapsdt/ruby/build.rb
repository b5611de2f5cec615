# frozen_string_literal: true

# Builds the extension for the running Ruby, out of tree, into the folder of its ABI in
# ruby/lib, where `ruby -Iruby/lib -rtracepoint` finds it. Several Rubies can share a
# checkout. Returns quickly if nothing has changed.

require "fileutils"
require "rbconfig"

here = __dir__
library = File.expand_path("..", here)
config = RbConfig::CONFIG
# As in tracepoint/implementation.rb.
abi = "#{config["ruby_version"]}#{"-static" if config["ENABLE_SHARED"] == "no"}-#{config["arch"]}"
build = File.join(library, "build", "ruby-#{abi}")
target = File.expand_path("../../ruby/lib/tracepoint/native/#{abi}/native.so", library)
log = File.join(build, "build.log")

# Inputs of the build. Different flags or another Ruby also cause a rebuild.
sources = Dir[File.join(here, "*.{c,h,rb}"), File.join(library, "src", "*.{c,h}"), File.join(library, "*.h"),
              File.join(library, "../extension.rb")].sort
stamp = [RUBY_DESCRIPTION, *ENV.values_at("TRACEPOINT_WERROR", "CC", "CFLAGS")].join("\n")
newest = lambda { sources.map { |path| File.mtime(path) }.max }
current = lambda do
  made = File.join(build, "made")
  File.exist?(made) && File.read(made) == "#{stamp}\n#{sources.join("\n")}" &&
    File.mtime(made) > newest.call && (File.exist?(target) || File.exist?(File.join(build, "nothing")))
end

FileUtils.mkdir_p(build)
File.open(File.join(build, "lock"), File::CREAT | File::RDWR) do |lock|
  lock.flock(File::LOCK_EX)
  exit if current.call

  started = Time.now
  run = lambda do |*command|
    system(*command, chdir: build, out: [log, "a"], err: %i[child out]) || begin
      warn File.read(log)
      abort "tracepoint: the extension did not build (#{command.join(" ")})"
    end
  end
  File.write(log, "")
  FileUtils.rm_f([*%w[nothing made Makefile].map { |name| File.join(build, name) }, *Dir[File.join(build, "*.{o,so}")]])
  run.call(RbConfig.ruby, File.join(here, "extconf.rb"))
  run.call(ENV.fetch("MAKE", "make")) if File.exist?(File.join(build, "Makefile"))

  if File.exist?(File.join(build, "native.so"))
    FileUtils.mkdir_p(File.dirname(target))
    # Rename into place: processes that have mapped the old file keep it.
    FileUtils.cp(File.join(build, "native.so"), "#{target}.new")
    File.rename("#{target}.new", target)
    puts "built #{target}"
  else
    FileUtils.rm_f(target)
    FileUtils.touch(File.join(build, "nothing"))
    puts "nothing to build here: the gem is a no-op (#{log})"
  end
  made = File.join(build, "made")
  File.write(made, "#{stamp}\n#{sources.join("\n")}")
  # A source saved during the build must be newer than its result.
  File.utime(started, started, made)
end
