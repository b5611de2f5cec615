"""Flame graphs: one SVG file that needs nothing else."""
