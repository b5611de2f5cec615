"""Renderings of results: text, JSON, and other formats. Callers print them."""
