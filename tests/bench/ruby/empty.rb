# frozen_string_literal: true

require "rbconfig"
require "tmpdir"

# EmptyC: methods written in C that do nothing, built on demand.
Dir.mktmpdir do |dir|
  extconf = File.expand_path("empty/extconf.rb", __dir__)
  ok = system(RbConfig.ruby, extconf, chdir: dir, out: File::NULL) &&
       system("make", chdir: dir, out: File::NULL, err: File::NULL)
  abort "the empty extension did not build" unless ok
  require File.join(dir, "empty")
end
