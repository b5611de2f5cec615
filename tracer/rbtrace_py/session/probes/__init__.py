"""Questions that probes answer: count, latency, trace, values."""
