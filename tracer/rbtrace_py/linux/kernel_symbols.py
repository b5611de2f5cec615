"""Names of the kernel's functions: of addresses, and where a thread sleeps."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property

from rbtrace_py.errors import NotPermitted, RbtraceError
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.procfs import read_file

_PATH = "/proc/kallsyms"
_MOST = 1 << 28
"""Bytes of the file."""
_CODE = b"tTwW"
_LARGEST = 1 << 16
"""Bytes of a module's function or a BPF program; what is beyond is another's."""
_SLEEPS_IN = re.compile(rb"\[<\w+>\] ([^\s+]+)\+\S+(?: (\[[^\s\]]+\]))?")


class KernelSymbols:
    """Functions by address: ``/proc/kallsyms`` at the first call of ``name``.

    By then programs that are loaded after this is made have names, too. Raises
    NotPermitted where the kernel hides the addresses.
    """

    def __init__(self) -> None:
        try:
            with open(_PATH, "rb") as file:
                is_shown = any(int(line.split(b" ", 1)[0], 16) for line in file)
        except OSError as error:
            raise _hidden(f"{_PATH}: {error.strerror}") from error
        if not is_shown:
            raise _hidden("it shows no addresses")

    @cached_property
    def _table(self) -> tuple[array[int], list[bytes]]:
        rows = sorted(_rows(read_file(_PATH, _MOST)), key=lambda row: row[0])
        return array("Q", (address for address, _ in rows)), [name for _, name in rows]

    def name(self, address: int) -> str | None:
        """Return the function at an address, ``ext4_readdir [ext4]`` of a module.

        None if there is none: what is there is data, or came later.
        """
        addresses, names = self._table
        at = bisect_right(addresses, address) - 1
        if at < 0:
            return None
        start = addresses[at]
        # Of several names for one place the kernel itself takes the first, too.
        name = names[bisect_right(addresses, start - 1)]
        if name.endswith(b"]") and address - start >= _LARGEST:
            return None
        return name.decode("ascii", "replace") or None


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
