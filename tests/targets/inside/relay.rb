# frozen_string_literal: true

# Listens, leaves the socket to a child, and becomes another program. The child moves the
# socket to the agent's place as soon as the agent has one, and forwards its input. It
# writes to the FIFO `relayed` in the directory when it is ready.
#
# ruby relay.rb DIRECTORY PROGRAM ARGUMENT...

require "socket"

folder, *program = ARGV
listener = UNIXServer.new("#{folder}/ours")
start = File.read("/proc/self/stat").rpartition(")").last.split[19]
place = "#{folder}/#{Process.pid}-#{start}.sock"

fork do
  sleep 0.01 until File.exist?(place)
  File.rename(place, "#{folder}/real")
  File.rename("#{folder}/ours", place)
  File.write("#{folder}/relayed", "ready")
  near = listener.accept
  far = UNIXSocket.new("#{folder}/real")
  back = Thread.new { IO.copy_stream(far, near) }
  IO.copy_stream(near, far)
  far.close_write
  back.join
end
exec(*program)
