"""Pages of a process that were written at least once, which are worth searching.

Reading an untouched page makes the kernel map a zero page into the target. This is slow
and changes the target. Thread stacks consist mostly of such pages.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator

from rbtrace_py.errors import RbtraceError
from rbtrace_py.linux.process import Process

_PAGE = os.sysconf("SC_PAGE_SIZE")
_THERE = 3 << 62
"""Bits 62 and 63 of an entry: swapped, present (Documentation/…/pagemap.rst)."""
_ENTRIES = 1 << 15
_MOST_PAGES = 1 << 26


def resident(
    process: Process, regions: Iterable[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the parts of ``regions`` that are in memory or swapped out.

    Both are (address, size). If the kernel hides this, all regions are returned.
    """
    regions = list(regions)
    try:
        fd = process.open("pagemap")
    except RbtraceError:
        return regions
    try:
        return [part for one in regions for part in _parts(fd, *one)]
    except OSError:
        return regions
    finally:
        os.close(fd)


def _parts(fd: int, start: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield runs of existing pages; raises OSError."""
    begin: int | None = None
    first, last = (
        start // _PAGE,
        min((start + size) // _PAGE, start // _PAGE + _MOST_PAGES),
    )
    page = first
    while page < last:
        data = os.pread(fd, 8 * min(_ENTRIES, last - page), 8 * page)
        entries = array("Q", data[: len(data) - len(data) % 8])
        if not entries:
            break
        for entry in entries:
            is_there = entry & _THERE != 0
            if is_there and begin is None:
                begin = page
            elif not is_there and begin is not None:
                yield begin * _PAGE, (page - begin) * _PAGE
                begin = None
            page += 1
    if begin is not None:
        yield begin * _PAGE, (page - begin) * _PAGE
