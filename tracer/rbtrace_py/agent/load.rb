# frozen_string_literal: true

# Starts the agent in a process that never loaded it, or restarts a stopped agent. The
# tracer appends the agent's source after __END__.
#
# The code is evaluated in a new thread, maybe more than once, but only one thread can
# create the link "begun" in the tracer's folder. The link "said" contains "done" and the
# address of the text for the proof of the tracer, which is process `peer`, or the error.
# If the tracer connects at once, it is answered here, while this thread still has the
# GVL. `library` is a thread that loads socket.so, or nil.
#
# Each file access and each wait releases the GVL, which costs 0.1 s per busy thread.
# Creating a link does not. Nothing is required or loaded by its path, because hooks of
# the program (caches of compiled code, reloaders) would record files that will be
# removed.
lambda do |text, folder, socket, peer, library|
  File.symlink("begun", "#{folder}/begun")
  begin
    # A tracer that was killed may have started the same a moment ago.
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
        # If the tracer was killed, its files are gone: the next tracer starts over.
        ::Tracepoint.__send__(:remove_const, :Agent) if defined?(::Tracepoint::Agent) && !::Tracepoint::Agent.respond_to?(:start)
      end
    end
    made = ::Tracepoint::Agent.path or raise "no socket could be made in #{::Tracepoint::Agent::Place.directories.join(" or ")}"
    address = ::Tracepoint::Agent.expect(peer) if ::Tracepoint::Agent.respond_to?(:expect)
    found = "done #{address}".rstrip
  rescue Exception => e # rubocop:disable Lint/RescueException -- every error is reported
    found = "#{e.class}: #{e.message}".b.delete("\0")
  end
  File.symlink(found.byteslice(0, 2000), "#{folder}/said")
  return unless made

  ::Tracepoint::Agent.welcome if ::Tracepoint::Agent.respond_to?(:welcome)
  Thread.current.priority = 0
  ::Tracepoint::Agent::Early.complete if defined?(::Tracepoint::Agent::Early)
  ::Tracepoint::Agent::Place.tidy(made)
end
