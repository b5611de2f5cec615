# frozen_string_literal: true

# Sleeps, and acts on the commands in its input:
#
#   again     execute this program again, now in Second.stand instead of First.stand
#   program   execute /bin/sleep
#   fork      fork a child that sleeps in Child.stand, and print its pid
#   burn      the same, but the child burns CPU in Child.burn
#   shell     start a shell as a child, and print its pid
#   go        let the shell execute this program
#   exit      exit
require "io/wait"

$stdout.sync = true

class Child
  def self.stand(stream)
    stream.gets
  end

  def self.burn(stream)
    nil until stream.wait_readable(0)
  end
end

def forked(how = :stand)
  read, write = IO.pipe
  pid = fork do
    write.close
    Child.public_send(how, read)
    exit!
  end
  read.close
  (@held ||= []) << write # its end is the child's
  pid
end

def shell
  read, @shell = IO.pipe
  words = ["sh", "-c", 'read _ && exec ruby "$0" again', __FILE__]
  pid = spawn(*words, in: read, out: File::NULL)
  read.close
  pid
end

def go
  @shell.puts
end

def turn(word)
  case word
  when "again" then exec("ruby", __FILE__, "again")
  when "program" then exec("/bin/sleep", "1000")
  when "fork" then puts "done #{forked}"
  when "burn" then puts "done #{forked(:burn)}"
  when "shell" then puts "done #{shell}"
  when "go" then puts "done #{go}"
  when "exit" then exit!
  else puts "done"
  end
end

class First
  def self.stand
    turn($stdin.gets&.strip || "exit") while true
  end
end

class Second
  def self.stand
    turn($stdin.gets&.strip || "exit") while true
  end
end

again = ARGV.delete("again")
puts again ? "done again" : "ready #{ARGV.fetch(0, 0).to_i.times.map { forked }.join(" ")}"
(again ? Second : First).stand
