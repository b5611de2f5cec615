# frozen_string_literal: true

# A Redis server for the tests, with its socket in a temporary folder.
module RedisServer
  class << self
    # @return [String, nil] nil if redis-server is not installed
    def url
      @url ||= start if installed?
    end

    def installed?
      ENV["PATH"].split(":").any? { |folder| File.executable?(File.join(folder, "redis-server")) }
    end

    private

    def start
      folder = Dir.mktmpdir
      socket = File.join(folder, "redis.sock")
      output, input = IO.pipe
      pid = Process.spawn("redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--dir", folder, out: input, err: input)
      input.close
      Minitest.after_run { [Process.kill("KILL", pid), Process.wait(pid), FileUtils.rm_rf(folder)] }
      log = +""
      log << output.readpartial(4096) until log.match?(/ready to accept connections/i)
      "unix://#{socket}"
    end
  end
end
