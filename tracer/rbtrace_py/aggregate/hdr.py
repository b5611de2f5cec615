"""The one place that knows the HdrHistogram library."""

from __future__ import annotations

from rbtrace_py.aggregate.histogram import Histogram, bucket_bounds

HIGHEST = 3_600_000_000_000
"""Values that any HdrHistogram log of ours can hold: an hour in nanoseconds."""


def encode(histogram: Histogram) -> str:
    """The base64 of its compressed V2 encoding, as HdrHistogram logs have it."""
    from hdrh.histogram import HdrHistogram

    encoder = HdrHistogram(1, max(HIGHEST, int(histogram.max)), 3)
    for index, count in histogram.keys.items():
        encoder.record_value(bucket_bounds(index)[0], count)
    encoded: bytes = encoder.encode()
    return encoded.decode("ascii")
