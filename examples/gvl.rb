# frozen_string_literal: true

# Three threads that compete for the GVL: one adds in Ruby, one runs a C function that keeps
# the GVL, and one writes, for which Ruby releases it. See docs/gvl.md.
class Invoice
  def total
    (1..20_000).sum { |cents| cents % 119 }
  end
end

class Key
  MODULUS = 2**2048 - 1

  def sign
    3.pow(MODULUS - 2, MODULUS)
  end
end

class Log
  def initialize
    @file = File.open(File::NULL, "w")
    @file.sync = true
  end

  def write
    @file.write("a line\n")
  end
end

$stdout.sync = true
threads = [[Invoice, :total], [Key, :sign], [Log, :write]].map do |kind, method|
  Thread.new(kind.new) { |one| loop { one.public_send(method) } }
end
puts "ready"
threads.each(&:join)
