"""The Ruby VM of a process, read from its memory."""
