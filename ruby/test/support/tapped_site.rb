# frozen_string_literal: true

begin
  require "fiddle"
rescue LoadError
  nil # tests that need a tap are skipped without Fiddle
end

# Patches a site like a tracer, without one: the site becomes a jump to code that counts
# the hit and stores the operands. Tests can thus run the traced paths and check operands
# without root and BPF.
class TappedSite
  NIL = { Integer => -2**63, Float => 0x7ff8726274726163, bool: 2 }.freeze
  SLOTS = 13 # the count, and 12 operands
  PAGE = 4096
  # mov [rax+8*n], register, for the six registers that carry operands
  REGISTERS = ["\x48\x89\x78", "\x48\x89\x70", "\x48\x89\x50", "\x48\x89\x48", "\x4c\x89\x40", "\x4c\x89\x48"].map(&:b).freeze

  class << self
    def why_not
      return "no fiddle to tap a site with" unless defined?(Fiddle::Function)

      "sites are tapped on x86-64 only" unless RbConfig::CONFIG["host_cpu"] == "x86_64"
    end

    def function(name, *arguments)
      @functions ||= {}
      @functions[name] ||= Fiddle::Function.new(Fiddle.dlopen(nil)[name], arguments, Fiddle::TYPE_INTPTR_T)
    end

    def mmap
      function("mmap", Fiddle::TYPE_VOIDP, Fiddle::TYPE_SIZE_T, Fiddle::TYPE_INT, Fiddle::TYPE_INT, Fiddle::TYPE_INT,
               Fiddle::TYPE_LONG)
    end

    def mprotect
      function("mprotect", Fiddle::TYPE_VOIDP, Fiddle::TYPE_SIZE_T, Fiddle::TYPE_INT)
    end

    def munmap
      function("munmap", Fiddle::TYPE_VOIDP, Fiddle::TYPE_SIZE_T)
    end
  end

  def initialize(address)
    @site = Fiddle::Pointer.new(address)
    @idle = @site[0, 8]
    @code = near(address)
    @slots = Fiddle::Pointer.new(@code + 1024)
    write_code
    writable_site
    @site[0, 5] = "\xe9".b + [@code - (address + 5)].pack("l<")
  end

  def close
    @site[0, 8] = @idle
    self.class.munmap.call(@code, PAGE)
  end

  def hits
    @slots[0, 8].unpack1("Q<")
  end

  # Return an operand of the last hit as a Ruby value.
  def value(index, type)
    raw = @slots[8 * (index + 1), 8]
    integer = raw.unpack1("q<")
    return { 0 => false, 1 => true, 2 => nil }.fetch(integer) if type == :bool
    return (Fiddle::Pointer.new(integer).to_s unless integer.zero?) if [String, Symbol].include?(type)
    return nil if integer == NIL.fetch(type)

    type == Float ? raw.unpack1("E") : integer
  end

  private

  # Return a page within reach of a five-byte jump.
  def near(address)
    (1..512).each do |distance|
      hint = (address & -PAGE) - (distance * 4 * 1024 * 1024)
      code = self.class.mmap.call(hint, PAGE, 7, 0x22, -1, 0) # rwx, private and anonymous
      return code if (code - address).abs < 2**31 - PAGE

      self.class.munmap.call(code, PAGE)
    end
    raise "no page near the site"
  end

  def write_code
    code = "\x48\xb8".b + [@code + 1024].pack("Q<") # mov rax, slots
    REGISTERS.each_with_index { |move, i| code << move << [8 * (i + 1)].pack("C") }
    6.times do |i| # mov rcx, [rsp+8(i+1)]; mov [rax+8(7+i)], rcx
      code << "\x48\x8b\x4c\x24".b << [8 * (i + 1)].pack("C") << "\x48\x89\x48".b << [8 * (i + 7)].pack("C")
    end
    code << "\xf0\x48\xff\x00\xc3".b # lock inc qword [rax]; ret
    Fiddle::Pointer.new(@code)[0, code.bytesize] = code
  end

  def writable_site
    page = @site.to_i & -PAGE
    result = self.class.mprotect.call(page, PAGE, 7)
    raise "the site's page stays read-only" unless result.zero?
  end
end
