# frozen_string_literal: true

# Begins the agent in a process that never loaded it, or again where it was taken out
# of service. What follows __END__, in the file that is made of this, is the agent.
#
# Evaluated with that file's text and path, in a thread of its own; it may be more than
# once, but only one can make the file "said" beside it. That comes to hold "done", or
# what went wrong.
#
# Each file that is touched costs a wait for Ruby's lock, 0.1 s for every thread that is
# busy: so they are few. Nothing is required or loaded by its path: what a program hooks
# into that (caches of compiled code, reloaders) would take note of files that are gone
# a moment later.
lambda do |text, path|
  said = File.open(File.join(File.dirname(path), "said"), File::WRONLY | File::CREAT | File::EXCL, 0o600)
  begin
    # A tracer that was killed may have begun the same a moment ago.
    before = Thread.main.thread_variable_get(:rbtrace_loader)
    Thread.main.thread_variable_set(:rbtrace_loader, Thread.current)
    before.join if before&.alive?
    if defined?(::Tracepoint::Agent)
      agent = ::Tracepoint::Agent
      agent.check_fork
      socket = agent.path
      agent.stop unless socket && File.socket?(socket) && File.lstat(socket).uid == Process.euid
      agent.start
    else
      source = text.partition("\n__END__\n").last
      begin
        RubyVM::InstructionSequence.compile(source, path, path).eval
      ensure
        # The tracer was killed, and its files went: who comes next begins anew.
        ::Tracepoint.__send__(:remove_const, :Agent) if defined?(::Tracepoint::Agent) && !::Tracepoint::Agent.respond_to?(:start)
      end
    end
    raise "no socket could be made" unless ::Tracepoint::Agent.path

    found = "done"
  rescue Exception => e # rubocop:disable Lint/RescueException -- it is told, whatever it is
    found = "#{e.class}: #{e.message}"
  end
  said.syswrite("#{found}\n".b)
  said.close
end
