"""Plain values that every layer shares; nothing here reads a process or a file."""
