"""The commands, one module each; the only layer that reads the command line."""
