# frozen_string_literal: true

# Threads that are stuck, each in a named kind of hang, and one thread that is not.
#
#   stuck.rb NAME…
#
# A thread is named after its hang. If the hang has several threads, each adds a letter.
require "fiber"
require "io/wait"
require "monitor"
require "socket"
require "tempfile"
require "tmpdir"

$stdout.sync = true

# Each method starts the threads of a hang, and returns those that will sleep forever.
module Hangs
  module_function

  def thread(name, &block)
    Thread.new(&block).tap { |one| one.name = name }
  end

  # Threads that each hold a lock, and wait for the lock of the next thread.
  def cycle(name, size)
    locks = Array.new(size) { yield }
    held = Thread::Queue.new
    gates = Array.new(size) { Thread::Queue.new }
    threads = Array.new(size) do |number|
      thread("#{name} #{(97 + number).chr}") do
        locks[number].synchronize do
          held << true
          gates[number].pop
          locks[(number + 1) % size].synchronize { nil }
        end
      end
    end
    size.times { held.pop }
    gates.each { |gate| gate << true }
    threads
  end

  def mutexes
    cycle("mutexes", 2) { Thread::Mutex.new }
  end

  def three
    cycle("three", 3) { Thread::Mutex.new }
  end

  def monitors
    cycle("monitors", 2) { Monitor.new }
  end

  def owned
    lock = Thread::Mutex.new
    held = Thread::Queue.new
    holder = thread("owned a") { lock.synchronize { held << true; sleep } }
    held.pop
    [holder, thread("owned b") { lock.lock }]
  end

  # A fiber that its thread has suspended.
  def fibers
    lock = Thread::Mutex.new
    held = Thread::Queue.new
    holder = thread("fibers a") do
      $fiber = Fiber.new { lock.lock && Fiber.yield }
      $fiber.resume
      held << true
      sleep
    end
    held.pop
    [holder, thread("fibers b") { lock.lock }]
  end

  def queue
    $queue = Thread::Queue.new
    [thread("queue a") { $queue.pop }, thread("queue b") { $queue.shift }]
  end

  def full
    $full = Thread::SizedQueue.new(2)
    2.times { |item| $full << item }
    [thread("full") { $full << 3 }]
  end

  def condition
    lock = Thread::Mutex.new
    $condition = Thread::ConditionVariable.new
    [thread("condition") { lock.synchronize { $condition.wait(lock) } }]
  end

  def joins
    others = Thread::Queue.new
    first = thread("joins a") { others.pop.join }
    second = thread("joins b") { first.value }
    others << second
    [first, second]
  end

  # Like joins, but it ends by itself.
  def limited
    others = Thread::Queue.new
    first = thread("limited a") { others.pop.join(1000) }
    second = thread("limited b") { first.join(2000.5) }
    others << second
    [first, second]
  end

  # Each wait would end by itself. Before 3.2, Queue#pop has no timeout.
  def timed
    lock, monitor = Thread::Mutex.new, Monitor.new
    $timed = [Thread::Queue.new, Thread::ConditionVariable.new, monitor.new_cond]
    $timed_pipe = IO.pipe
    reader = $timed_pipe[0]
    threads = [
      thread("timed condition") { lock.synchronize { $timed[1].wait(lock, 1004.5) } },
      thread("timed monitor") { monitor.synchronize { $timed[2].wait(1005) } },
      thread("timed select") { IO.select([reader], nil, nil, 1006) },
      thread("timed own") { select([reader], nil, nil, 1009) },
      thread("timed io") { reader.wait_readable(1007) }
    ]
    return threads if RUBY_VERSION < "3.2"

    threads << thread("timed queue") { $timed[0].pop(timeout: 1008) }
  end

  def pipe
    $pipe = IO.pipe
    [thread("pipe") { $pipe[0].read }]
  end

  def full_pipe
    $full_pipe = IO.pipe
    [thread("full_pipe") { $full_pipe[1].write("x" * (1 << 20)) }]
  end

  def socket
    $sockets = UNIXSocket.pair
    [thread("socket") { $sockets[0].gets }]
  end

  def tcp
    $server = TCPServer.new("127.0.0.1", 0)
    $client = TCPSocket.new("127.0.0.1", $server.addr[1])
    $peer = $server.accept
    [thread("tcp") { $client.readpartial(10) }]
  end

  def accepting
    $listening = TCPServer.new("127.0.0.1", 0)
    [thread("accepting") { $listening.accept }]
  end

  def unix_accepting
    path = "#{Dir.mktmpdir("rbtrace-stuck")}/a.socket"
    $unix_listening = UNIXServer.new(path)
    File.unlink(path)
    [thread("unix_accepting") { $unix_listening.accept }]
  end

  def selecting
    $selected = IO.pipe
    [thread("selecting") { IO.select([$selected[0]]) }]
  end

  def child
    $child = spawn("sleep", "1000")
    [thread("child") { Process.wait($child) }]
  end

  # One thread reads a child's output. Another fills the pipe to a child's input.
  def output
    $output = IO.popen(["sleep", "1001"])
    [thread("output") { $output.read }]
  end

  def input
    $input = IO.popen(["sleep", "1002"], "w")
    [thread("input") { $input.write("x" * (1 << 20)) }]
  end

  # Closing the pipe waits for the child, which keeps running.
  def closing
    $closing = IO.popen(["sleep", "1003"])
    $closed = $closing.pid
    [thread("closing") { $closing.close }]
  end

  def flock
    $flock = Tempfile.new("lock")
    ready, says = IO.pipe
    $locker = fork do
      ready.close
      $stdout.reopen(File::NULL)
      File.open($flock.path) do |file|
        file.flock(File::LOCK_EX)
        says.puts
        sleep
      end
    end
    ready.gets
    [thread("flock") { File.open($flock.path) { |file| file.flock(File::LOCK_EX) } }]
  end

  def fifo
    # A new name: a killed process that had this pid may have left its FIFO.
    $fifo = "#{Dir.mktmpdir("rbtrace-stuck")}/a.fifo"
    File.mkfifo($fifo)
    [thread("fifo") { File.open($fifo) { nil } }]
  end

  # A fiber scheduler that never resumes a fiber: it ignores events and has no clock.
  class Sleepy
    def close
      ($sleepy = Thread::Queue.new).pop
    end

    def fiber(&block)
      # Without another reference, a suspended fiber would be collected.
      Fiber.new(blocking: false, &block).tap { |one| ($fibers ||= []) << one }.tap(&:resume)
    end

    def io_wait(*)
      Fiber.yield
    end

    %i[block kernel_sleep unblock fiber_interrupt].each do |hook|
      define_method(hook) { |*| Fiber.yield }
    end
  end

  # The third and the fourth fiber wait for each other.
  def scheduler
    first, second = Array.new(2) { Thread::Mutex.new }
    $scheduled = IO.pipe
    told = Thread::Queue.new
    one = thread("scheduler") do
      Fiber.set_scheduler(Sleepy.new)
      Fiber.schedule { Thread::Queue.new.pop }
      Fiber.schedule { $scheduled[0].read(1) }
      third = Fiber.new(blocking: false) do
        first.lock
        Fiber.yield
        second.lock
      end
      ($fibers ||= []) << third
      third.resume
      Fiber.schedule { second.lock && first.lock }
      third.resume
      told << true
      third
    end
    told.pop
    [one]
  end

  # Holds the GVL in a system call after "ready": pause(2) on x86-64.
  def gvl
    holder = thread("gvl") do
      sleep 0.01 until $said
      Kernel.syscall(34)
    end
    [holder]
  end

  # Two files that require each other, each in its own thread.
  def requires
    $gates = Array.new(2) { Thread::Queue.new }
    $begun = Thread::Queue.new
    $folder = Dir.mktmpdir
    names = %w[a b].map { |letter| "#{$folder}/#{letter}.rb" }
    names.each_with_index do |name, number|
      File.write(name, "$begun << true; $gates[#{number}].pop; require '#{names[1 - number]}'\n")
    end
    threads = names.map { |name| thread("requires #{name[-4]}") { require name } }
    2.times { $begun.pop }
    $gates.each { |gate| gate << true }
    threads
  end

  # A constant whose file waits for the thread that waits for the constant.
  def autoloads
    $lock = Thread::Mutex.new
    $held = Thread::Queue.new
    $loads = Thread::Queue.new
    $file = Tempfile.new(%w[autoload .rb])
    $file.write("$loads << true; $lock.lock\n")
    $file.flush
    Object.autoload(:Loaded, $file.path)
    holder = thread("autoloads a") { $lock.synchronize { $held << true && $loads.pop && Loaded } }
    $held.pop
    [holder, thread("autoloads b") { Loaded }]
  end

  # A host's name is requested from a silent server, by a private mount on x86-64. Each
  # process uses another address, because several may run at once.
  def lookup
    server = "127.9.#{Process.pid >> 8 & 255}.#{Process.pid & 255}"
    $server = UDPSocket.new
    $server.bind(server, 53)
    $resolver = Tempfile.new("resolv.conf")
    $resolver.write("nameserver #{server}\noptions timeout:30\n")
    $resolver.flush
    unshare, mount, namespace, private, bind = 272, 165, 0x20000, 0x44000, 0x1000
    Kernel.syscall(unshare, namespace)
    Kernel.syscall(mount, 0, +"/", 0, private, 0)
    Kernel.syscall(mount, $resolver.path, +"/etc/resolv.conf", 0, bind, 0)
    [thread("lookup") { TCPSocket.new("silent.example.com", 80) }]
  end

  # A thread waits for a Ractor, which waits for a message.
  def ractor
    one = Ractor.new { Ractor.receive }
    [thread("ractor") { one.respond_to?(:take) ? one.take : one.value }]
  end

  # The main thread exits after "ready", but this thread does not end.
  def exiting
    stop = Thread::Queue.new
    $exits = true
    [thread("exiting") do
      sleep
    ensure
      stop.pop
    end]
  end

  def asleep
    [thread("asleep a") { sleep }, thread("asleep b") { sleep 1000.5 },
     thread("asleep c") { Thread.stop }, thread("asleep d") { sleep 2001/2r }]
  end
end

live = Thread.new { loop { sleep 0.05 } }
live.name = "live"
stuck = ARGV.flat_map { |name| Hangs.public_send(name) }
Thread.pass until stuck.all? { |one| one.status == "sleep" }
puts "ready #{Process.pid}"
$said = true
exit if $exits
$stdin.gets
Process.kill(:KILL, *[$child, $closed, $locker, $output&.pid, $input&.pid].compact)
File.delete($fifo) if $fifo
FileUtils.rm_r($folder) if $folder
