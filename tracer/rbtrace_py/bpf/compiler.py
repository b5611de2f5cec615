"""From a program's source to instructions: by bcc, or from the cache.

This is the one importer of bcc, which serves as the compiler only: maps are
made and programs loaded by ``program``. So what bcc makes can be kept, and a
command whose programs were compiled before starts without bcc.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import platform
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from rbtrace_py import __version__
from rbtrace_py.errors import BpfError

_HERE = Path(__file__).parent
_SOURCES = _HERE / "programs"
_INCLUDE = _HERE / "include"

_DEBIAN_BCC = "/usr/lib/python3/dist-packages/bcc/__init__.py"
_OWN_FILE = "libbcc.py"
"""A file that the BPF Compiler Collection's package has, and PyPI's bcc has not."""

_LD_IMM64 = 0x18
_PSEUDO_MAP_FD = 1
_MOST_ENTRIES = 256


Function = tuple[bytes, tuple[tuple[int, str], ...]]


@dataclass(frozen=True, slots=True)
class Compiled:
    """Functions of one source, by name.

    Each is its instructions, 8 bytes each, and the places (instruction
    numbers) where the descriptor of a map, by name, has to be filled in.
    """

    functions: dict[str, Function]


def compile_program(
    source: str,
    functions: tuple[str, ...],
    maps: tuple[str, ...],
    flags: Mapping[str, int],
    prelude: str = "",
) -> Compiled:
    """Compile ``programs/SOURCE``.

    source: file name; functions, maps: the names in it to keep
    flags: numbers for -D
    prelude: text put in front (the filter)
    Raises BpfError when bcc is missing or refuses.
    """
    text = prelude + _expand(source)
    defines = [f"-D{name}={value}" for name, value in sorted(flags.items())]
    wanted = json.dumps(
        [text, defines, functions, maps, platform.machine(), __version__, _headers()]
    )
    key = hashlib.sha256(wanted.encode()).hexdigest()
    cached = _load(key)
    if cached is None or not _is_whole(cached, functions, maps):
        cached = _compile(text, defines, functions, maps)
        _store(key, cached)
    return cached


def _expand(name: str) -> str:
    """The source with its own includes put in, so that a cache key is whole."""
    lines = []
    for line in (_SOURCES / name).read_text().splitlines():
        if line.startswith('#include "'):
            lines.append(_expand(line.split('"')[1]))
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _headers() -> str:
    """All of the include tree, as a hash."""
    digest = hashlib.sha256()
    for path in sorted(_INCLUDE.rglob("*.h")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


# ------------------------------------------------------------------ compiling


def _compile(
    text: str,
    defines: list[str],
    functions: tuple[str, ...],
    maps: tuple[str, ...],
) -> Compiled:
    bcc = import_bcc()
    # bcc changes its directory to this one, and reads no other headers.
    os.environ["BCC_KERNEL_SOURCE"] = str(_INCLUDE)
    with _quiet_stderr() as said:
        try:
            module = bcc.BPF(text=text.encode(), cflags=[*defines, "-w"])
        except Exception as error:  # bcc raises the bare class
            raise BpfError(
                f"bcc cannot compile the tracing program: {error}", said()
            ) from error
    try:
        names = {int(module[name.encode()].map_fd): name for name in maps}
        return Compiled(
            {f: _relocate(module.dump_func(f.encode()), names) for f in functions}
        )
    finally:
        module.cleanup()


def import_bcc() -> Any:
    """The bcc module, whichever Python runs; BpfError says how to get it."""
    try:
        with _found(_find_bcc()):
            import bcc
    except (ImportError, OSError) as error:  # OSError: libbcc.so.0 is not there
        raise BpfError(
            f"bcc, the BPF Compiler Collection, cannot be loaded: {error}",
            "apt-get install python3-bpfcc (on Debian and Ubuntu)",
        ) from error
    return bcc


def _find_bcc() -> ModuleSpec:
    """Where it is; raises ImportError.

    Debian's package is pure Python, but on the path of Debian's own Python alone.
    Elsewhere bcc is on the path, if anywhere.
    """
    if os.path.exists(_DEBIAN_BCC):
        spec = importlib.util.spec_from_file_location("bcc", _DEBIAN_BCC)
    else:
        spec = importlib.util.find_spec("bcc")
    if spec is None or spec.origin is None:
        raise ImportError("it is not installed")
    if not os.path.exists(os.path.join(os.path.dirname(spec.origin), _OWN_FILE)):
        # It is not even run, as root at that, to see what it is.
        raise ImportError(f"{spec.origin} is PyPI's bcc, another program")
    return spec


@contextlib.contextmanager
def _found(spec: ModuleSpec) -> Iterator[None]:
    """While entered, the module of that name is found there."""

    class Finder(MetaPathFinder):
        def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
            return spec if name == spec.name else None

    finder = Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def _relocate(
    code: bytes, names: Mapping[int, str]
) -> tuple[bytes, tuple[tuple[int, str], ...]]:
    """Find the map descriptors in ``code`` and take them out."""
    clean = bytearray(code)
    places = []
    position = 0
    while position < len(code):
        wide = code[position] == _LD_IMM64
        if wide and code[position + 1] >> 4 == _PSEUDO_MAP_FD:
            fd = int.from_bytes(code[position + 4 : position + 8], "little")
            places.append((position // 8, names[fd]))
            clean[position + 4 : position + 8] = bytes(4)
        position += 16 if wide else 8
    return bytes(clean), tuple(places)


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[Callable[[], str]]:
    """clang writes to descriptor 2 itself; keep its words for an error."""
    with tempfile.TemporaryFile() as words:
        sys.stderr.flush()
        saved = os.dup(2)

        def said() -> str:
            words.seek(0)
            return words.read().decode(errors="replace")[-2000:]

        try:
            os.dup2(words.fileno(), 2)
            yield said
        finally:
            os.dup2(saved, 2)
            os.close(saved)


# ---------------------------------------------------------------------- cache


def cache_directory() -> Path | None:
    """Where compiled programs are kept, or None.

    What is in it is loaded into the kernel, so it must be ours alone: root's
    is under /var/cache, because with sudo $HOME may be somebody else's.
    """
    chosen = os.environ.get("RBTRACE_CACHE_DIR")
    if chosen == "":
        return None
    if chosen:
        base = Path(chosen)
    elif os.geteuid() == 0:
        base = Path("/var/cache/rbtrace-py")
    else:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        base = Path(home) / "rbtrace-py"
    place = base / "programs"
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return None
    return place if _is_ours(base) and _is_ours(place) else None


def _is_ours(place: Path) -> bool:
    """A directory of ours, no link to one, that nobody else can write to."""
    try:
        status = place.lstat()
    except OSError:
        return False
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.geteuid()
        and not status.st_mode & 0o022
    )


def _load(key: str) -> Compiled | None:
    place = cache_directory()
    if place is None:
        return None
    try:
        with open(place / key, "rb", opener=_open_no_link) as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                return None
            document = json.load(file)
        return Compiled(
            {name: _checked(*function) for name, function in document.items()}
        )
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _is_whole(
    cached: Compiled, functions: tuple[str, ...], maps: tuple[str, ...]
) -> bool:
    named = {m for _, places in cached.functions.values() for _, m in places}
    return set(cached.functions) == set(functions) and named <= set(maps)


def _checked(code: str, places: list[list[object]]) -> Function:
    """A function out of a cache; ValueError if its parts do not fit together."""
    instructions = bytes.fromhex(code)
    found = []
    for at, name in places:
        inside = isinstance(at, int) and 0 <= at * 8 <= len(instructions) - 16
        if not inside or not isinstance(name, str):
            raise ValueError("a place outside the code")
        assert isinstance(at, int)
        found.append((at, name))
    return instructions, tuple(found)


def _store(key: str, compiled: Compiled) -> None:
    place = cache_directory()
    if place is None:
        return
    document = {
        name: (code.hex(), places)
        for name, (code, places) in compiled.functions.items()
    }
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time
        file, new = tempfile.mkstemp(dir=place, prefix=".new-")
        try:
            with open(file, "w") as stream:
                json.dump(document, stream)
            os.replace(new, place / key)
        except BaseException:
            os.unlink(new)
            raise
        _evict(place)


def _evict(place: Path) -> None:
    """Keep the newest: a program is compiled for each filter, among others."""
    entries = sorted(place.iterdir(), key=lambda path: path.lstat().st_mtime)
    for path in entries[:-_MOST_ENTRIES]:
        path.unlink(missing_ok=True)
