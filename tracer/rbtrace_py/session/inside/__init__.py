"""The agent inside a process: loading, detaching, code that it runs, and reports."""
