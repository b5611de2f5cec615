# Runs forever in frames that no call instruction names: two files that are autoloaded by
# Ruby's `require` or by its replacement, `const_added`, or two frames of `warn`.
$stdout.sync = true
autoload :Outer, "#{__dir__}/autoloaded/outer"

def load_outer
  Outer
end

def spin
  puts "ready"
  count = 0
  count += 1 while true
end

case ARGV.first
when "require"
  load_outer
when "replaced"
  module Kernel
    alias_method :before_it_was_replaced, :require
    def require(path)
      before_it_was_replaced(path)
    end
  end
  load_outer
when "const_added"
  unless Module.private_method_defined?(:const_added)
    puts "ready without"
    sleep
  end
  class Module
    def const_added(_name)
      spin
    end
  end
  ADDED = 1
when "warn"
  OUTER = INNER = 0
  SET_INNER = -> { INNER = 1 } # rubocop:disable Lint/ConstantDefinitionInBlock
  def Warning.warn(message, **)
    SET_INNER.call if message.include?("constant OUTER")
    spin if message.include?("constant INNER")
  end
  OUTER = 1
end
