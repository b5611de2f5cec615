"""The agent inside a Ruby process: loading, protocol, shared memory, and source."""
