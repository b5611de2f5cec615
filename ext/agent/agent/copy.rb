# frozen_string_literal: true

module Tracepoint
  module Agent
    # A forked copy that works for a tracer. It ends with the process, closes all sockets,
    # and is the first to be killed if the kernel runs out of memory.
    module Copy
      # System call numbers: Ruby has no methods for these, and may lack Fiddle.
      PRCTL = { "x86_64" => 157, "aarch64" => 167 }.freeze
      CLOSE = { "x86_64" => 3, "aarch64" => 57 }.freeze
      PR_SET_PDEATHSIG = 1
      MACHINE = RbConfig::CONFIG["host_cpu"]

      module_function

      # In the child. parent: the pid of the traced process
      def settle(parent)
        $VERBOSE = nil # Kernel#syscall warns
        end_with(parent)
        go_first
        close_sockets
      end

      # If the process is not dumpable, root owns the file (proc(5)). The dump continues
      # anyway.
      def go_first
        File.write("/proc/self/oom_score_adj", "1000")
      rescue SystemCallError
        nil
      end

      def end_with(parent)
        syscall(PRCTL.fetch(MACHINE), PR_SET_PDEATHSIG, Signal.list["KILL"], 0, 0, 0)
        # The parent may have ended just before prctl.
        exit!(false) unless Process.ppid == parent
      end

      # Without IO#close, which would wait for threads that do not exist in the child.
      def close_sockets
        Dir.children("/proc/self/fd").each do |name|
          is_socket = File.readlink("/proc/self/fd/#{name}").start_with?("socket:")
          syscall(CLOSE.fetch(MACHINE), name.to_i) if is_socket
        rescue Errno::ENOENT # the descriptor of the listing itself
          next
        end
      end
    end
  end
end
