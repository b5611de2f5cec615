# frozen_string_literal: true

module Tracepoint
  module Agent
    # The socket's place: docs/agent/access.md.
    module Place
      NAME = /\A(\d+)-(\d+)\.sock\z/.freeze
      MOST_CLEANED = 256

      module_function

      def name
        "#{Process.pid}-#{started("self")}.sock"
      end

      # Field 22 of stat; the second, the program's name, may have anything in it.
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

      # Others can be first in the last two.
      def bases
        [ENV["XDG_RUNTIME_DIR"].to_s, "/run/user/#{Process.euid}"].select { |base| private?(base) }.uniq + %w[/tmp /dev/shm]
      end

      # An absolute path to a directory that is ours alone.
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

      # Where the tracer that puts the agent there has made a directory for it: to look
      # at files gives up the GVL, 0.1 s for every busy thread. `tidy` does the rest.
      def bind_prepared
        path = Thread.current.thread_variable_get(:rbtrace_socket).to_s
        return if path.empty? # Linux would choose an abstract name

        [UNIXServer.new(path), path]
      rescue SystemCallError, ArgumentError
        nil
      end

      # The part of `bind` that was put off.
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
        rescue SystemCallError, ArgumentError # a path too long
          next
        end
        nil
      end

      # Nobody else can have made it so that this is true.
      def ours?(directory)
        begin
          Dir.mkdir(directory, 0o700)
        rescue Errno::EEXIST
          nil
        end
        stat = File.lstat(directory)
        stat.directory? && stat.uid == Process.euid && (stat.mode & 0o077).zero?
      end

      # Removes the places of agents that could not do it themselves.
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

      # It may be of a process in another pid namespace: only asking tells.
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
