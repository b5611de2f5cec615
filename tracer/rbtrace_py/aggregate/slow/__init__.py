"""Spans that took long, and the samples that are kept until one has ended."""
