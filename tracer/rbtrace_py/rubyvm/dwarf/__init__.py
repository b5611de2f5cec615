"""Offsets from DWARF: finding its file, and reading it in a separate process."""
