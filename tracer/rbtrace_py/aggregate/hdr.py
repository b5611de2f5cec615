"""Encoding and decoding of HdrHistogram logs, by the HdrHistogram library."""

from __future__ import annotations

import base64
import zlib
from collections import Counter

from rbtrace_py.aggregate.histogram import Histogram, bucket_index

HIGHEST = 3_600_000_000_000
"""Minimum upper bound of the logs that we write: an hour in nanoseconds."""

_HEADER_SIZE = 8
_MAX_UNPACKED = 1 << 24


def encode(histogram: Histogram) -> str:
    """Return the compressed V2 encoding in base64, as in HdrHistogram logs."""
    from hdrh.histogram import HdrHistogram

    encoder = HdrHistogram(1, max(HIGHEST, int(histogram.max)), histogram.digits)
    for lowest, _, count in histogram.buckets():
        encoder.record_value(lowest, count)
    encoded: bytes = encoder.encode()
    return encoded.decode("ascii")


def decode(text: str) -> Histogram:
    """Return the histogram of a line of an HdrHistogram log.

    A histogram of 2 or 3 digits is unchanged. With other digits, each value becomes the
    lowest value of its bucket.

    Raises:
        ValueError: ``text`` is not a valid histogram.
    """
    from hdrh.histogram import HdrHistogram

    _check_size(text)
    try:
        decoder = HdrHistogram.decode(text.encode("ascii"))
    except Exception as error:  # the library raises what it likes
        raise ValueError(f"invalid histogram: {error}") from error
    digits = 2 if decoder.significant_figures == 2 else 3
    counts: Counter[int] = Counter()
    for item in decoder.get_recorded_iterator():
        lowest = decoder.get_lowest_equivalent_value(item.value_iterated_to)
        counts[bucket_index(lowest, digits)] += item.count_at_value_iterated_to
    return Histogram(counts, digits)


def _check_size(text: str) -> None:
    """Check the unpacked size in advance: the library unpacks data of any size."""
    try:
        packed = base64.b64decode(text, validate=True)[_HEADER_SIZE:]
        unpacker = zlib.decompressobj()
        unpacker.decompress(packed, _MAX_UNPACKED)
    except (ValueError, zlib.error) as error:
        raise ValueError(f"invalid histogram: {error}") from error
    if not unpacker.eof:
        raise ValueError("invalid histogram: truncated or too large")
