"""Method calls, exceptions and allocations, as the hook of the agent reports them."""
