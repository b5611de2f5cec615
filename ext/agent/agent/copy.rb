# frozen_string_literal: true

module Tracepoint
  module Agent
    # A forked copy that works for a tracer: it ends with the process, keeps none of its
    # sockets open, and is what the kernel ends first where memory runs out.
    module Copy
      # System calls by machine (Ruby has no method for them, and Fiddle is not always there).
      PRCTL = { "x86_64" => 157, "aarch64" => 167 }.freeze
      CLOSE = { "x86_64" => 3, "aarch64" => 57 }.freeze
      PR_SET_PDEATHSIG = 1
      MACHINE = RbConfig::CONFIG["host_cpu"]

      module_function

      # In the child. parent: the pid of the process
      def settle(parent)
        $VERBOSE = nil # Kernel#syscall warns
        end_with(parent)
        go_first
        close_sockets
      end

      # The file belongs to root where the process is not dumpable (proc(5)): the dump
      # is made all the same.
      def go_first
        File.write("/proc/self/oom_score_adj", "1000")
      rescue SystemCallError
        nil
      end

      def end_with(parent)
        syscall(PRCTL.fetch(MACHINE), PR_SET_PDEATHSIG, Signal.list["KILL"], 0, 0, 0)
        # It may have ended just before that.
        exit!(false) unless Process.ppid == parent
      end

      # Not as Ruby's IO, which would wait for threads that are not here.
      def close_sockets
        Dir.children("/proc/self/fd").each do |name|
          is_socket = File.readlink("/proc/self/fd/#{name}").start_with?("socket:")
          syscall(CLOSE.fetch(MACHINE), name.to_i) if is_socket
        rescue Errno::ENOENT # that of the listing
          next
        end
      end
    end
  end
end
