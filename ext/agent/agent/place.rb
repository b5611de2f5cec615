# frozen_string_literal: true

module Tracepoint
  module Agent
    # The socket's path: docs/agent/access.md.
    module Place
      NAME = /\A(\d+)-(\d+)\.sock\z/.freeze
      MOST_CLEANED = 256

      module_function

      def name
        "#{Process.pid}-#{started("self")}.sock"
      end

      # Field 22 of stat. Field 2, the program's name, may contain any character.
      def started(pid)
        File.read("/proc/#{pid}/stat").rpartition(")").last.split[19].to_i
      rescue SystemCallError
        0
      end

      def directories
        asked = ENV["TRACEPOINT_AGENT_DIR"].to_s
        return [asked] unless asked.empty?

        bases.map { |base| File.join(base, "rbtrace-agent-#{Process.euid}") }
      end

      # In the last two, another user may create the directory first.
      def bases
        [ENV["XDG_RUNTIME_DIR"].to_s, "/run/user/#{Process.euid}"].select { |base| private?(base) }.uniq + %w[/tmp /dev/shm]
      end

      # Return whether it is an absolute path to a directory that only we can use.
      def private?(base)
        return false unless base.start_with?("/")

        stat = File.stat(base)
        stat.directory? && stat.uid == Process.euid && (stat.mode & 0o077).zero?
      rescue SystemCallError, ArgumentError
        false
      end

      # @return [Array(UNIXServer, String), nil]
      def bind
        bind_prepared || bind_anywhere
      end

      # Bind in the directory that the injecting tracer has prepared. Checking files would
      # release the GVL, which costs 0.1 s per busy thread. `tidy` does the rest later.
      def bind_prepared
        path = Thread.current.thread_variable_get(:rbtrace_socket).to_s
        return if path.empty? # Linux would choose an abstract name

        [UNIXServer.new(path), path]
      rescue SystemCallError, ArgumentError
        nil
      end

      # Finish what `bind` has deferred.
      def tidy(path)
        File.chmod(0o600, path)
        clean(File.dirname(path))
      rescue SystemCallError
        nil
      end

      # @return [Array(UNIXServer, String), nil]
      def bind_anywhere
        directories.each do |directory|
          next unless ours?(directory)

          clean(directory)
          path = File.join(directory, name)
          File.unlink(path) if File.symlink?(path) || File.exist?(path)
          server = UNIXServer.new(path)
          File.chmod(0o600, path)
          return [server, path]
        rescue SystemCallError, ArgumentError # the path may be too long
          next
        end
        nil
      end

      # Another user cannot create a directory that passes these checks.
      def ours?(directory)
        begin
          Dir.mkdir(directory, 0o700)
        rescue Errno::EEXIST
          nil
        end
        stat = File.lstat(directory)
        stat.directory? && stat.uid == Process.euid && (stat.mode & 0o077).zero?
      end

      # Remove sockets of agents that did not remove them.
      def clean(directory)
        Dir.children(directory).first(MOST_CLEANED).each do |name|
          found = NAME.match(name) or next
          next if started(found[1]) == found[2].to_i && File.exist?("/proc/#{found[1]}")

          path = File.join(directory, name)
          File.unlink(path) if deserted?(path)
        rescue SystemCallError
          next
        end
      end

      # The socket may belong to another pid namespace, so connecting is the only test.
      def deserted?(path)
        Early.complete
        socket = Socket.new(:UNIX, :STREAM)
        socket.connect_nonblock(Socket.sockaddr_un(path), exception: false)
        false
      rescue Errno::ECONNREFUSED
        true
      ensure
        socket&.close
      end
    end
  end
end
