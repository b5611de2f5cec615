"""Names of the kernel's functions: of addresses, and where a thread sleeps."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator

from rbtrace_py.errors import NotPermitted, RbtraceError
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.procfs import read_file

_PATH = "/proc/kallsyms"
_MOST = 1 << 28
"""Bytes of the file."""
_CODE = b"tTwW"
_SLEEPS_IN = re.compile(rb"\[<\w+>\] ([^\s+]+)\+\S+(?: (\[[^\s\]]+\]))?")


class KernelSymbols:
    """Functions by address, as ``/proc/kallsyms`` has them when this is made.

    Raises NotPermitted where the kernel hides the addresses.
    """

    def __init__(self) -> None:
        try:
            text = read_file(_PATH, _MOST)
        except OSError as error:
            raise _hidden(f"{_PATH}: {error.strerror}") from error
        rows = sorted(_rows(text), key=lambda row: row[0])
        if not rows or not rows[-1][0]:
            raise _hidden("it shows no addresses")
        self._addresses = array("Q", (address for address, _ in rows))
        self._names = [name for _, name in rows]

    def name(self, address: int) -> str | None:
        """Return the function at an address, ``ext4_readdir [ext4]`` of a module.

        None if there is none: what is there is data, or came later.
        """
        at = bisect_right(self._addresses, address) - 1
        if at < 0:
            return None
        # Of several names for one place the kernel itself takes the first, too.
        first = bisect_right(self._addresses, self._addresses[at] - 1)
        return self._names[first].decode("ascii", "replace") or None


def _hidden(why: str) -> NotPermitted:
    return NotPermitted(
        f"the kernel does not name its functions: {why}",
        "Run as root or with CAP_SYSLOG, where kernel.kptr_restrict is 0 or 1: `sysctl"
        " kernel.kptr_restrict`",
        root_helps=True,
    )


def _rows(text: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield each address with its function's name, empty of what is no code."""
    for line in text.splitlines():
        address, _, rest = line.partition(b" ")
        is_code = rest[:1] in _CODE
        yield int(address, 16), rest[2:].replace(b"\t", b" ") if is_code else b""


def sleeping_stack(process: Process, tid: int) -> list[str]:
    """Return the functions in which a thread sleeps, the newest first.

    Without those of the scheduler, which the kernel does not tell. Empty where the
    thread has ended or runs, or we may not know (CAP_SYS_ADMIN).
    """
    try:
        text = process.read(f"task/{tid}/stack")
    except RbtraceError:
        return []
    found = _SLEEPS_IN.findall(text)
    return [b" ".join(filter(None, one)).decode("ascii", "replace") for one in found]
