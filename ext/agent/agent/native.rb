# frozen_string_literal: true

module Tracepoint
  module Agent
    # The agent's C part, or the reason for its absence.
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

      # The hook is beside agent.rb (attach, the Python package), in the checkout, or where
      # the gem built it.
      def self.place
        beside = File.join(FOLDER, "agent_hook.so")
        # Checking for the file releases the GVL, which costs 0.1 s per busy thread. Searching
        # all gems would take a minute in such a program.
        return beside if PUT_THERE || File.exist?(beside)

        checkout = File.expand_path("../../ruby/lib/tracepoint/native/agent-#{RbConfig::CONFIG["arch"]}/agent_hook.so", FOLDER)
        File.exist?(checkout) ? checkout : "tracepoint/agent_hook"
      end
      load unless @reason
    end
  end
end
