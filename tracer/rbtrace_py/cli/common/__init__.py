"""Helpers that several commands share: options, output, Ctrl-C, screens, files."""
