"""ptrace: pausing a process, and controlling one of its threads."""
