"""The commands, one a module; the only layer that reads words from a terminal."""
