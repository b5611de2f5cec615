"""Images of a hostile Ruby VM: recordings, damaged as an attacker would.

An image is fixed once it is made: two reads of the same place give the same data, so a
wrong structure is consistently wrong. Memory that was not recorded is missing, or is
derived from the address, so that lists, chains, and tables have no end.
"""

from __future__ import annotations

import functools
import random
import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rbtrace_py.errors import UnreadableMemory
from rbtrace_py.linux.memory import LARGEST_READ
from rbtrace_py.rubyvm.layout import Layout
from replays import replay

NAMES = ("2.7", "3.1", "3.3", "3.4", "4.1.0dev-zjit")

_COUNTS = (0, 1, 2, 8, 63, 64, 255, 4096, 1 << 16, 1 << 20, 1 << 24, 1 << 28, 1 << 31)
_HUGE = ((1 << 32) - 1, 1 << 47, (1 << 62) - 8, 1 << 63, (1 << 64) - 8, (1 << 64) - 1)


class Recorded(NamedTuple):
    """A recording of the Ruby called ``name``, and the addresses of its roots."""

    name: str
    runs: list[tuple[int, bytes]]
    layout: Layout
    vm: int
    symbols: int
    stacks: dict[str, Any]
    zjit: int | None


def recorded(name: str) -> Recorded:
    """Read the recording of the Ruby called ``name``."""
    found = replay(name)
    runs = [
        (start, found.memory.read(start, size)) for start, size in found.memory.runs
    ]
    roots = found.vm, found.symbols
    return Recorded(name, runs, found.layout, *roots, found.stacks, found.zjit)


class Places(NamedTuple):
    """The places of all words, and of the pointers among them: number of the run, and
    offset in it."""

    words: list[tuple[int, int]]
    pointers: list[tuple[int, int]]


@functools.lru_cache
def places_of(name: str) -> Places:
    """Find the words and pointers in the undamaged recording."""
    image = Image(recorded(name).runs)
    words = [
        (run, place)
        for run, (start, data) in enumerate(image.runs)
        for place in range(-start % 8, len(data) - 7, 8)
    ]
    pointers = [
        (run, place)
        for run, place in words
        if image.has(_word(image.runs[run][1], place) & -8)
    ]
    return Places(words, pointers)


class Image:
    """Memory of ``runs``. It counts reads and bytes.

    ``elsewhere`` returns the word at an address outside the runs. None makes reads
    there fail. ``places`` are the words that can be damaged.
    """

    def __init__(
        self,
        runs: Sequence[tuple[int, bytes]],
        elsewhere: Callable[[int], int] | None = None,
        places: Places | None = None,
    ) -> None:
        self.runs = [(start, bytearray(data)) for start, data in runs]
        self.starts = [start for start, _ in self.runs]
        self.places = places or Places([], [])
        self.elsewhere = elsewhere
        self.reads = self.bytes = 0

    def read(self, address: int, size: int) -> bytes:
        """Read as ProcessMemory does: exactly ``size`` bytes, or UnreadableMemory."""
        self.reads += 1
        if not 0 <= size <= LARGEST_READ or not 0 <= address < 1 << 64:
            raise UnreadableMemory("invalid address or size")
        self.bytes += size
        place = bisect_right(self.starts, address) - 1
        if place >= 0:
            start, data = self.runs[place]
            if address + size <= start + len(data):
                return bytes(data[address - start : address - start + size])
        if self.elsewhere is None or address < 4096:
            raise UnreadableMemory(f"nothing at {address:#x}")
        return self._made_up(address, size)

    def _made_up(self, address: int, size: int) -> bytes:
        assert self.elsewhere is not None
        if size == 8 and address & 7 == 0:
            return (self.elsewhere(address) & (1 << 64) - 1).to_bytes(8, "little")
        begin = address & -8
        count = (address + size - begin + 7) // 8
        some = [
            self.elsewhere(begin + 8 * index) & (1 << 64) - 1
            for index in range(min(count, 64))
        ]
        words = (some * (count // 64 + 1))[:count]
        return struct.pack(f"={count}Q", *words)[address - begin :][:size]

    def gather(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Gather as ProcessMemory does."""
        if len(ranges) > 1024 or sum(size for _, size in ranges) > LARGEST_READ:
            raise UnreadableMemory("cannot read so much at once")
        return [self.read(address, size) for address, size in ranges]

    def words(self) -> list[tuple[bytearray, int]]:
        """Return the place of each aligned word: the run's bytes, and the offset in
        them."""
        return [(self.runs[run][1], place) for run, place in self.places.words]

    def pointers(self) -> list[tuple[bytearray, int]]:
        """Return the places of the words that were pointers into the recording."""
        return [(self.runs[run][1], place) for run, place in self.places.pointers]

    def has(self, address: int) -> bool:
        """Return whether the runs contain the word at ``address``."""
        place = bisect_right(self.starts, address) - 1
        return place >= 0 and address + 8 <= self.starts[place] + len(
            self.runs[place][1]
        )


def _word(data: bytes, place: int) -> int:
    value: int = struct.unpack_from("=Q", data, place)[0]
    return value


def _put(data: bytearray, place: int, value: int) -> None:
    struct.pack_into("=Q", data, place, value & (1 << 64) - 1)


Damage = Callable[[Image, random.Random], None]


def flip_bits(image: Image, chance: random.Random) -> None:
    """Flip some bits."""
    for _ in range(chance.choice((1, 4, 40, 400))):
        _, data = chance.choice(image.runs)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def lie_in_counts(image: Image, chance: random.Random) -> None:
    """Make small words, which may be counts and sizes, huge or zero."""
    for data, place in chance.sample(image.words(), 200):
        if _word(data, place) < 1 << 24:
            _put(data, place, chance.choice((*_COUNTS, *_HUGE)))


def swap_pointers(image: Image, chance: random.Random) -> None:
    """Swap pointers."""
    pointers = image.pointers()
    for _ in range(chance.choice((1, 8, 100))):
        (one, at), (other, to) = chance.choice(pointers), chance.choice(pointers)
        first, second = _word(one, at), _word(other, to)
        _put(one, at, second)
        _put(other, to, first)


def make_cycles(image: Image, chance: random.Random) -> None:
    """Point pointers to themselves, to their structure, or all to one place."""
    pointers = image.pointers()
    begins = {id(data): start for start, data in image.runs}
    target = _word(*chance.choice(pointers))
    for data, place in chance.sample(pointers, min(len(pointers), 20)):
        own = begins[id(data)] + place
        _put(data, place, chance.choice((own, own & -64, own - 8, target, target + 8)))


def change_kinds(image: Image, chance: random.Random) -> None:
    """Change the types of objects: a class becomes a String, and so on."""
    pointers = image.pointers()
    for data, place in chance.sample(pointers, min(len(pointers), 60)):
        at = _word(data, place) & -8
        if not image.has(at):
            continue
        index = bisect_right(image.starts, at) - 1
        start, its = image.runs[index]
        flags = _word(its, at - start) & ~0x1F | chance.randrange(0x20)
        _put(its, at - start, flags ^ chance.choice((0, 1 << 12, 1 << 13, 15 << 12)))


def fill_pages(image: Image, chance: random.Random) -> None:
    """Fill pieces of memory with random bytes, zeros, or one repeated word."""
    for _ in range(chance.choice((1, 3, 20))):
        _, data = chance.choice(image.runs)
        start = chance.randrange(len(data))
        size = min(chance.choice((64, 512, 4096)), len(data) - start)
        word = _word(*chance.choice(image.words())).to_bytes(8, "little")
        data[start : start + size] = chance.choice(
            (chance.randbytes(size), bytes(size), (word * (size // 8 + 1))[:size])
        )


def take_away(image: Image, chance: random.Random) -> None:
    """Remove pieces of memory."""
    keep = chance.choice((0.5, 0.9, 0.99))
    for _, data in image.runs:
        if chance.random() > keep:
            data.clear()


DAMAGES: tuple[Damage, ...] = (
    flip_bits,
    lie_in_counts,
    swap_pointers,
    make_cycles,
    change_kinds,
    fill_pages,
)

_KINDS = (0x01, 0x02, 0x03, 0x05, 0x07, 0x0C, 0x14, 0x1A, 0x1C)


def endless(seed: int) -> Callable[[int], int] | None:
    """Words of memory that was never there: None, or one way to go on for ever.

    Chains that never come back, objects of one kind wherever one looks, structures that
    are all counts, and noise.
    """
    chance = random.Random(seed)
    flags = chance.choice(_KINDS) | chance.getrandbits(20) << 12
    step = chance.choice((8, 40, 64, 4096, 1 << 20))
    ways: tuple[Callable[[int], int] | None, ...] = (
        None,
        None,
        lambda at: at + step,
        lambda at: flags if at % 64 == 0 else at + step & -64,
        lambda at: flags if at % 16 == 0 else at * 3 & (1 << 46) - 64,
        lambda at: at,
        lambda at: (1 << 64) - 1,
        lambda at: flags if at % 40 == 0 else (1 << 16) + at % 5,
        lambda at: at * 0x9E3779B97F4A7C15 >> 17,
    )
    return chance.choice(ways)


def damaged(source: Recorded, seed: int) -> Image:
    """Return the image of that number: the same each time."""
    chance = random.Random(seed)
    image = Image(source.runs, endless(seed), places_of(source.name))
    for damage in chance.sample(DAMAGES, chance.choice((1, 1, 2, 3))):
        damage(image, chance)
    if chance.random() < 0.1:
        take_away(image, chance)
    return image
