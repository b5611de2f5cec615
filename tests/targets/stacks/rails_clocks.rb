# frozen_string_literal: true

# Loaded into examples/rails by RUBYOPT: measures each controller action with the clocks
# of its thread. Each process appends a line per call to clocks-PID.log in
# SHOP_FOLDER: "ItemsController#index began ended wall cpu", the first two
# CLOCK_REALTIME, all in nanoseconds.
module ActionClocks
  ACTIONS = {
    "ItemsController" => %i[index show],
    "OrdersController" => %i[create],
    "ReportsController" => %i[index],
    "StatementsController" => %i[create]
  }.freeze

  def self.now(clock)
    Process.clock_gettime(clock, :nanosecond)
  end

  def self.measure(name)
    began = now(Process::CLOCK_REALTIME)
    wall = now(Process::CLOCK_MONOTONIC)
    cpu = now(Process::CLOCK_THREAD_CPUTIME_ID)
    yield
  ensure
    cpu = now(Process::CLOCK_THREAD_CPUTIME_ID) - cpu
    wall = now(Process::CLOCK_MONOTONIC) - wall
    log.write("#{name} #{began} #{began + wall} #{wall} #{cpu}\n")
  end

  # A worker that was forked has its own log.
  def self.log
    return @log if @pid == Process.pid

    @pid = Process.pid
    @log = File.open(File.join(ENV.fetch("SHOP_FOLDER"), "clocks-#{@pid}.log"), "a")
    @log.sync = true
    @log
  end

  def self.watch(controller)
    actions = ACTIONS.fetch(controller.name)
    wrapper = Module.new do
      actions.each do |action|
        name = "#{controller.name}##{action}"
        define_method(action) { ActionClocks.measure(name) { super() } }
      end
    end
    controller.prepend(wrapper)
  end
end

left = ActionClocks::ACTIONS.keys
definitions = TracePoint.new(:end) do |point|
  if point.self.is_a?(Class) && left.delete(point.self.name)
    ActionClocks.watch(point.self)
    definitions.disable if left.empty?
  end
end
definitions.enable
