"""Names of kernel functions by address, and the kernel stacks of sleeping threads."""

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
"""Maximum number of bytes read."""
_CODE = b"tTwW"
_LARGEST = 1 << 16
"""Maximum size of a module's function or a BPF program in bytes."""
_SLEEPS_IN = re.compile(rb"\[<\w+>\] ([^\s+]+)\+\S+(?: (\[[^\s\]]+\]))?")


class KernelSymbols:
    """Kernel functions by address, from ``/proc/kallsyms``.

    The file is read at the first call of ``name``, so that BPF programs loaded after
    this object was created have names too. Raises NotPermitted if the kernel hides the
    addresses.
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
        """Return the function at an address, such as ``ext4_readdir [ext4]``.

        None if the address is data, or if its code was loaded later.
        """
        addresses, names = self._table
        at = bisect_right(addresses, address) - 1
        if at < 0:
            return None
        start = addresses[at]
        # The kernel, too, uses the first of several names for one address.
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
    """Yield each address with its function's name, or b"" if it is not code."""
    for line in text.splitlines():
        address, _, rest = line.partition(b" ")
        is_code = rest[:1] in _CODE
        yield int(address, 16), rest[2:].replace(b"\t", b" ") if is_code else b""


def sleeping_stack(process: Process, tid: int) -> list[str]:
    """Return the functions in which a thread sleeps, newest first.

    The kernel omits the scheduler's functions. The list is empty if the thread has
    ended or is on CPU, or if we lack CAP_SYS_ADMIN.
    """
    try:
        text = process.read(f"task/{tid}/stack")
    except RbtraceError:
        return []
    found = _SLEEPS_IN.findall(text)
    return [b" ".join(filter(None, one)).decode("ascii", "replace") for one in found]
