"""Trace running Ruby processes: USDT probes, latencies, stacks."""

__version__ = "0.1.0"
