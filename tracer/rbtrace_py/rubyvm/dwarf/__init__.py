"""Offsets out of DWARF: where its file is, and a process of its own that reads it."""
