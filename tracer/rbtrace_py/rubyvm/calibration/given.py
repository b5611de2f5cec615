"""What the script said of itself, and its memory, in the form that searches want."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from rbtrace_py.errors import UnknownRuby, UnreadableMemory
from rbtrace_py.linux.memory import Memory
from rbtrace_py.rubyvm.roots import is_pointer, read_array

_U64 = struct.Struct("<Q")
_MOST_VALUES = 1000
_MOST_READS = 1 << 20
"""Of one search; a Ruby takes some 25,000, and 50 kB."""
_MOST_BYTES = 1 << 26

Found = dict[str, int]
"""Offsets by name of ``Offsets``."""


@dataclass(slots=True)
class Given:
    """What the script said.

    values: VALUEs by name
    sizes: words of an iseq's code, by name
    places: (position in words, line) of its instructions at which a line begins
    states: of each thread, 0 runs, 1 sleeps, 2 is stopped for good
    tids: kernel thread id of each thread as it sees it itself, 0 where it cannot say
    """

    values: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    places: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    states: list[int] = field(default_factory=list)
    tids: list[int] = field(default_factory=list)

    def named(self, prefix: str) -> list[int]:
        """The values whose name begins so, in their order."""
        return [value for name, value in self.values.items() if name.startswith(prefix)]


def parse(lines: Iterable[bytes], memory: Memory) -> Given:
    """Read what the script says, up to ``ready``; raises UnknownRuby."""
    given, names = Given(), b""
    try:
        for line in lines:
            words = line.split()
            if words[0] == b"iseq":
                name = words[1].decode("ascii")
                given.sizes[name] = int(words[2])
                pairs = (pair.split(b":") for pair in words[3].split(b","))
                given.places[name] = [(int(at), int(number)) for at, number in pairs]
            elif words[0] == b"thread":
                given.states.append(int(words[2]))
                given.tids.append(int(words[3]))
            elif words[0] == b"names":
                names = words[1]
            elif words[0] == b"ready":
                values = read_array(memory, int(words[1], 16), _MOST_VALUES)
                keys = names.decode("ascii").split(",")
                given.values = dict(zip(keys, values, strict=True))
                return given
    except (ValueError, IndexError, UnreadableMemory) as error:
        raise failed(f"its answer makes no sense ({error})") from error
    raise failed("it did not get ready")


def failed(what: str) -> UnknownRuby:
    """The error of a calibration that found no or no certain answer."""
    return UnknownRuby(
        f"running the target's Ruby did not tell its layout: {what}",
        "install its debug symbols, or say --ruby-version",
    )


class View:
    """A memory that holds still, read in words.

    It is that of a target's program, which may be made to lead on and on: so what is
    read of it is bounded. Raises UnknownRuby beyond that.
    """

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self._kept: dict[tuple[int, int], bytes] = {}
        self._reads, self._bytes = _MOST_READS, _MOST_BYTES

    def read(self, address: int, size: int) -> bytes:
        """Return up to ``size`` bytes, fewer (or none) where it cannot be read."""
        key = (address, size)
        self._reads -= 1
        if key not in self._kept:
            self._kept[key] = self._fetch(address, size)
            self._bytes -= len(self._kept[key])
        if min(self._reads, self._bytes) < 0:
            raise failed("there is no end to what it leads to")
        return self._kept[key]

    def _fetch(self, address: int, size: int) -> bytes:
        if not 0x1000 <= address < 1 << 47:
            return b""
        for end in (address + size, (address + size - 1) & -4096):
            if end <= address:
                continue
            try:
                return self.memory.read(address, end - address)
            except UnreadableMemory:
                continue
        return b""

    def words(self, address: int, count: int) -> Sequence[int]:
        """Return up to ``count`` 8-byte words."""
        data = self.read(address, 8 * count)
        return memoryview(data[: len(data) & -8]).cast("Q")

    def word(self, address: int) -> int:
        """Return the word at ``address``, 0 where there is none."""
        data = self.read(address, 8)
        return _U64.unpack(data)[0] if len(data) == 8 else 0

    def u32(self, address: int) -> int:
        """Return the 4 bytes at ``address`` as a number, 0 where there are none."""
        return int.from_bytes(self.read(address, 4), "little")

    def pointers(self, address: int, count: int) -> Iterator[tuple[int, int]]:
        """Yield offset and value of the words that may be pointers."""
        for index, word in enumerate(self.words(address, count)):
            if is_pointer(word):
                yield 8 * index, word


def offset_where(
    size: int, step: int, places: Sequence[int], test: Callable[[int, int], bool]
) -> int | None:
    """Return the lowest offset that is right for all ``places``, or None.

    test: of the number of the place and the address in it
    """
    for offset in range(0, size, step):
        if all(test(i, place + offset) for i, place in enumerate(places)):
            return offset
    return None


def sure(value: int | None, what: str) -> int:
    """Return ``value``; raises UnknownRuby, naming what was not found, for None."""
    if value is None:
        raise failed(f"{what} was not found")
    return value
