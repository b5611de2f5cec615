# frozen_string_literal: true

module Tracepoint
  module Agent
    # Where the socket is: docs/agent.md, "The socket's place".
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

        %w[/tmp /dev/shm].map { |base| File.join(base, "rbtrace-agent-#{Process.euid}") }
      end

      # @return [Array(UNIXServer, String), nil]
      def bind
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

      # Of agents that could not do it themselves.
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
