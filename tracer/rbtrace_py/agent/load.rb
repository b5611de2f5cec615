# frozen_string_literal: true

# Begins the agent in a process that never loaded it, or again where it was taken out
# of service. Evaluated in a thread of its own, in the folder of agent.rb; it may be
# more than once. What comes of it is written to the file "said" there: "begun", and
# then "done", or what went wrong.
#
# Nothing is required or loaded by its path: what a program hooks into that (caches of
# compiled code, reloaders) would take note of files that are gone a moment later.
lambda do |folder|
  begin
    # Only one can remove it.
    File.unlink(File.join(folder, "once"))
  rescue SystemCallError
    next
  end
  said = File.open(File.join(folder, "said"), "ab")
  said.sync = true
  said.write("begun\n")
  begin
    agent = defined?(::Tracepoint::Agent) && ::Tracepoint::Agent
    if agent
      agent.check_fork
      path = agent.path
      agent.stop unless path && File.socket?(path) && File.lstat(path).uid == Process.euid
      agent.start
    else
      path = File.join(folder, "agent.rb")
      source = File.binread(path).force_encoding(Encoding::UTF_8)
      RubyVM::InstructionSequence.compile(source, path, path).eval
    end
    raise "no socket could be made" unless ::Tracepoint::Agent.path

    said.write("done\n")
  rescue Exception => e # rubocop:disable Lint/RescueException -- it is told, whatever it is
    said.write("#{e.class}: #{e.message}\n".b)
  end
  said.close
end.call(__dir__)
