# frozen_string_literal: true

# Builds the agent's hook into ruby/lib, where agent/native.rb finds it in a checkout.
# One object serves every Ruby of an architecture. Returns quickly if nothing has changed.

require "fileutils"
require "rbconfig"
require "shellwords"

here = __dir__
list = File.join(here, "sources.txt")
sources = File.readlines(list, chomp: true).map { |name| File.join(here, name) }
headers = Dir[File.join(here, "hook", "*.h")]
target = File.expand_path("../../ruby/lib/tracepoint/native/agent-#{RbConfig::CONFIG["arch"]}/agent_hook.so", here)

unless RUBY_ENGINE == "ruby" && RbConfig::CONFIG["host_os"].include?("linux") &&
       %w[x86_64 aarch64].include?(RbConfig::CONFIG["host_cpu"])
  puts "nothing to build here: the agent has no method events"
  exit
end

compiler = (ENV["CC"] || RbConfig::CONFIG["CC"]).shellsplit
flags = %w[-std=gnu11 -O2 -g -fPIC -shared -nostdlib -fvisibility=hidden -fno-stack-protector
           -Wall -Wextra -Wno-strict-prototypes]
flags << "-Werror" if ENV["TRACEPOINT_WERROR"] == "1" || File.directory?(File.join(here, "../../.git"))
command = [*compiler, *ENV["CFLAGS"].to_s.shellsplit, *flags]
stamp = "#{target}.made"

FileUtils.mkdir_p(File.dirname(target))
File.open("#{target}.lock", File::CREAT | File::RDWR) do |lock|
  lock.flock(File::LOCK_EX)
  exit if File.exist?(target) && File.exist?(stamp) && File.read(stamp) == command.join(" ") &&
          File.mtime(stamp) > [list, *sources, *headers, __FILE__].map { |path| File.mtime(path) }.max

  # Rename into place: processes that have mapped the old file keep it.
  system(*command, "-o", "#{target}.new", *sources) || abort("tracepoint: the agent's hook did not build")
  File.rename("#{target}.new", target)
  File.write(stamp, command.join(" "))
  puts "built #{target}"
end
