# frozen_string_literal: true

# Each object has its own method with the same code. A step prints one and waits in this
# method. "late" makes the collector free the previous ones. From then on, the methods write
# $~, for which Ruby puts an object between a frame and its method.
$stdout.sync = true

def fresh
  Object.new.tap do |one|
    def one.alone(is_late)
      $~ = nil if is_late
      $stdin.gets
    end
  end
end

def early
  one = fresh
  puts one.inspect
  one.alone(false)
end

def late(kept)
  one = fresh
  kept << one
  puts one.inspect
  one.alone(true)
end

kept = []
is_late = false
puts "ready"
while (word = $stdin.gets)
  if word == "late\n"
    is_late = true
    GC.start
    puts "done"
  else
    is_late ? late(kept) : early
  end
end
