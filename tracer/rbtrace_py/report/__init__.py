"""Renderings of results: text, JSON, HdrHistogram logs. They yield, others print."""
