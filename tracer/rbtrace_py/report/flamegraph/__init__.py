"""Flame graphs: one self-contained SVG file."""
