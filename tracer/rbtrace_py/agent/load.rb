# frozen_string_literal: true

# Begins the agent in a process that never loaded it, or again where it was taken out
# of service. What follows __END__, in the text that is made of this, is the agent.
#
# Evaluated in a thread of its own; it may be more than once, but only one can make the
# link "begun" in the tracer's folder. "said" leads to "done" and the address of the
# text that the tracer, as process `peer`, proves with; or to what went wrong. The tracer
# is answered here if it comes at once, as nobody else has the GVL then. `library` is a
# thread that loads socket.so, or nil.
#
# Every file that is touched, and every wait, costs 0.1 s for each thread that is busy,
# as it gives up the GVL. Making a link does not. Nothing is required or loaded
# by its path: what a program hooks into that (caches of compiled code, reloaders) would
# take note of files that are gone a moment later.
lambda do |text, folder, socket, peer, library|
  File.symlink("begun", "#{folder}/begun")
  begin
    # A tracer that was killed may have begun the same a moment ago.
    before = Thread.main.thread_variable_get(:rbtrace_loader)
    Thread.main.thread_variable_set(:rbtrace_loader, Thread.current)
    before.join if before&.alive?
    Thread.current.thread_variable_set(:rbtrace_socket, socket)
    Thread.current.thread_variable_set(:rbtrace_library, library)
    if defined?(::Tracepoint::Agent)
      agent = ::Tracepoint::Agent
      agent.check_fork
      path = agent.path
      agent.stop unless path && File.socket?(path) && File.lstat(path).uid == Process.euid
      agent.start
    else
      source = text.partition("\n__END__\n").last
      path = "#{folder}/agent.rb"
      begin
        RubyVM::InstructionSequence.compile(source, path, path).eval
      ensure
        # The tracer was killed, and its files went: who comes next begins anew.
        ::Tracepoint.__send__(:remove_const, :Agent) if defined?(::Tracepoint::Agent) && !::Tracepoint::Agent.respond_to?(:start)
      end
    end
    made = ::Tracepoint::Agent.path or raise "no socket could be made in #{::Tracepoint::Agent::Place.directories.join(" or ")}"
    address = ::Tracepoint::Agent.expect(peer) if ::Tracepoint::Agent.respond_to?(:expect)
    found = "done #{address}".rstrip
  rescue Exception => e # rubocop:disable Lint/RescueException -- it is told, whatever it is
    found = "#{e.class}: #{e.message}".b.delete("\0")
  end
  File.symlink(found.byteslice(0, 2000), "#{folder}/said")
  return unless made

  ::Tracepoint::Agent.welcome if ::Tracepoint::Agent.respond_to?(:welcome)
  Thread.current.priority = 0
  ::Tracepoint::Agent::Early.complete if defined?(::Tracepoint::Agent::Early)
  ::Tracepoint::Agent::Place.tidy(made)
end
