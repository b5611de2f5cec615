# frozen_string_literal: true

module Tracepoint
  module Agent
    # The agent's C part, or why there is none.
    module Native
      class << self
        attr_reader :reason
      end
      @reason =
        if RUBY_ENGINE != "ruby" then "the hook is for CRuby, this is #{RUBY_ENGINE}"
        elsif !RbConfig::CONFIG["host_os"].include?("linux") then "the hook is for Linux"
        end

      def self.load
        require place
      rescue LoadError, SystemCallError => e
        raise if PUT_THERE && !File.exist?(FOLDER)

        @reason = "agent_hook.so was not built or does not load: #{e.message}"
      end

      # Beside agent.rb (attach, the Python package), in the checkout that it is in,
      # or as the gem built it.
      def self.place
        beside = File.join(FOLDER, "agent_hook.so")
        # To ask whether it is there gives up the GVL, 0.1 s for every busy thread;
        # to look through all gems takes such a program a minute.
        return beside if PUT_THERE || File.exist?(beside)

        checkout = File.expand_path("../../ruby/lib/tracepoint/native/agent-#{RbConfig::CONFIG["arch"]}/agent_hook.so", FOLDER)
        File.exist?(checkout) ? checkout : "tracepoint/agent_hook"
      end
      load unless @reason
    end
  end
end
