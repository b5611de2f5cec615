"""ptrace: pausing a process, and leading one of its threads."""
