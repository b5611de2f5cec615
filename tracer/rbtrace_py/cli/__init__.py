"""The commands, one a module; the only storey that reads words from a terminal."""
