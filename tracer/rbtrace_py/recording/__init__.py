"""Recordings and results in files: written, opened, filtered, and read."""
