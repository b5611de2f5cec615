"""Compiled programs: from the wheel, from the cache, or by bcc.

Only this module imports bcc, and only as a compiler: ``program`` makes the maps and
loads the programs. Therefore compiled programs can be stored. A wheel contains every
program without a filter. A command starts without bcc if its programs are in the wheel
or in the cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from rbtrace_py import __version__
from rbtrace_py.bpf.abi import definitions
from rbtrace_py.errors import BpfError
from rbtrace_py.linux import cache
from rbtrace_py.model.recorded_groups import By, RecordedValues

_HERE = Path(__file__).parent
_SOURCES = _HERE / "programs"
_INCLUDE = _HERE / "include"
BUILT = _HERE / "built"
"""Folder of the programs in a wheel (setup.py), named by the keys of their sources."""

_DEBIAN_BCC = "/usr/lib/python3/dist-packages/bcc/__init__.py"
_OWN_FILE = "libbcc.py"
"""A file in the BPF Compiler Collection's package that PyPI's bcc lacks."""

_MOST_ENTRIES = 256


Compiled = dict[str, bytes]
"""Instructions (8 bytes each) of the functions of one source, by name."""


def compile_program(
    source: str, flags: Mapping[str, int], prelude: str = ""
) -> Compiled:
    """Return a compiled program from the wheel or the cache, or compile it.

    Args:
        source: Name of the file in ``programs/``.
        flags: Numbers for ``-D``, in addition to ``abi.definitions``.
        prelude: Text that precedes the source (the filter).

    Raises:
        BpfError: bcc is missing or reports an error.
    """
    text, defines = _input(source, flags, prelude)
    key = _key(text, defines)
    found = _carried(key) or _load(key)
    if found is None:
        found = _compile(text, defines)
        _store(key, found)
    return found


def build_into(folder: Path) -> None:
    """Compile the programs of a wheel; this needs no privileges.

    Args:
        folder: The wheel's ``BUILT``. It is not created if there is an error.

    Raises:
        BpfError: bcc is missing or reports an error.
    """
    documents = {}
    for source, flags in without_filter():
        text, defines = _input(source, flags)
        documents[_key(text, defines)] = _document(_compile(text, defines))
    folder.mkdir(parents=True)
    for key, document in documents.items():
        (folder / key).write_text(document)


def carries_programs() -> bool:
    """Return whether the wheel contains programs, so that only filters need bcc."""
    return BUILT.is_dir()


def without_filter() -> Iterator[tuple[str, dict[str, int]]]:
    """Yield source and flags of every program that commands use without a filter."""
    for source in ("tracked_pids.c", "switches.c", "trace.c"):
        yield source, {}
    for may_goto in (1, 0):
        for switches in (1, 0):
            yield "stacks.c", {"MAY_GOTO": may_goto, "SWITCHES": switches}
        yield "events.c", {"MAY_GOTO": may_goto}
    for values in RecordedValues:
        # Only counts and durations without a key have dense histograms.
        is_dense = values in (RecordedValues.NONE, RecordedValues.DURATION)
        kinds = [(by, 0) for by in By] + [(By.NOTHING, 1)] * is_dense
        for by, dense in kinds:
            yield "values.c", {"VALUES": values, "BY": by, "DENSE": dense}
            if values is RecordedValues.DURATION:
                yield "pairs.c", {"VALUES": values, "BY": by, "DENSE": dense}


def _input(
    source: str, flags: Mapping[str, int], prelude: str = ""
) -> tuple[str, list[str]]:
    """Return the complete text of a program, and its ``-D`` options."""
    numbers = {**definitions(), **flags}
    defines = [f"-D{name}={int(value)}" for name, value in sorted(numbers.items())]
    return prelude + _expand(source), defines


def _key(text: str, defines: list[str]) -> str:
    parts = [text, defines, platform.machine(), __version__, _headers()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _expand(name: str) -> str:
    """Return a source with its includes expanded, so that the key covers them."""
    lines = []
    for line in (_SOURCES / name).read_text().splitlines():
        if line.startswith('#include "'):
            lines.append(_expand(line.split('"')[1]))
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _headers() -> str:
    """Return a hash of the include tree."""
    digest = hashlib.sha256()
    for path in sorted(_INCLUDE.rglob("*.h")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


# ------------------------------------------------------------------ compiling


def _compile(text: str, defines: list[str]) -> Compiled:
    bcc = import_bcc()
    # bcc changes into this directory and reads only its headers.
    os.environ["BCC_KERNEL_SOURCE"] = str(_INCLUDE)
    with _quiet_stderr() as said:
        try:
            module = bcc.BPF(text=text.encode(), cflags=[*defines, "-w"])
        except Exception as error:  # bcc raises the bare class
            raise BpfError(
                f"bcc cannot compile the tracing program: {error}", said()
            ) from error
    try:
        count = bcc.lib.bpf_num_functions(module.module)
        names = [bcc.lib.bpf_function_name(module.module, i) for i in range(count)]
        return {name.decode(): module.dump_func(name) for name in names}
    finally:
        module.cleanup()


def import_bcc() -> Any:
    """Import bcc, under any Python; the hint of BpfError tells how to install it."""
    try:
        with _found(_find_bcc()):
            import bcc
    except (ImportError, OSError) as error:  # OSError: libbcc.so.0 is missing
        raise _no_bcc(error) from error
    return bcc


def check_bcc() -> None:
    """Raise BpfError if bcc is not installed; fast, because nothing is imported."""
    try:
        _find_bcc()
    except ImportError as error:
        raise _no_bcc(error) from error


def _no_bcc(error: Exception) -> BpfError:
    return BpfError(
        f"bcc, the BPF Compiler Collection, cannot be loaded: {error}",
        "Run apt-get install python3-bpfcc (on Debian and Ubuntu)"
        + (", or do without --filter" if carries_programs() else ""),
    )


def _find_bcc() -> ModuleSpec:
    """Find Debian's bcc package; raises ImportError.

    Debian's package is pure Python, but only Debian's Python has it on its path. On
    other systems, bcc must be on the path.
    """
    if os.path.exists(_DEBIAN_BCC):
        spec = importlib.util.spec_from_file_location("bcc", _DEBIAN_BCC)
    else:
        spec = importlib.util.find_spec("bcc")
    if spec is None or spec.origin is None:
        raise ImportError("not installed")
    if not os.path.exists(os.path.join(os.path.dirname(spec.origin), _OWN_FILE)):
        # Do not import it for the check: rbtrace-py may run as root.
        raise ImportError(f"{spec.origin} is PyPI's bcc, a different program")
    return spec


@contextlib.contextmanager
def _found(spec: ModuleSpec) -> Iterator[None]:
    """Make imports find a module by this spec inside the context."""

    class Finder(MetaPathFinder):
        def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
            return spec if name == spec.name else None

    finder = Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[Callable[[], str]]:
    """Capture stderr; clang writes its errors directly to descriptor 2."""
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
    """Return the folder of compiled programs, or None.

    Its contents are loaded into the kernel, so only this user may write to it. Root's
    folder is under /var/cache, because $HOME may belong to another user under sudo.
    """
    chosen = os.environ.get("RBTRACE_CACHE_DIR")
    if chosen == "":
        return None
    if chosen:
        base = Path(chosen)
    elif os.geteuid() == 0:
        base = Path("/var/cache/rbtrace-py")
    else:
        base = cache.home() / "rbtrace-py"
    return cache.directory_in(base, "programs")


def _load(key: str) -> Compiled | None:
    return _parse(cache.read(cache_directory(), key) or b"")


def _carried(key: str) -> Compiled | None:
    """Return a compiled program from the wheel; None if it is missing."""
    try:
        return _parse((BUILT / key).read_bytes())
    except OSError:
        return None


def _document(compiled: Compiled) -> str:
    return json.dumps({name: code.hex() for name, code in compiled.items()})


def _parse(document: bytes) -> Compiled | None:
    """Parse the output of ``_document``; None if it is malformed."""
    try:
        found = json.loads(document)
        return {name: bytes.fromhex(code) for name, code in found.items()} or None
    except (ValueError, TypeError, AttributeError):
        return None


def _store(key: str, compiled: Compiled) -> None:
    place = cache_directory()
    cache.write(place, key, _document(compiled).encode("ascii"))
    if place is not None:
        _evict(place)


def _evict(place: Path) -> None:
    """Delete all but the newest entries: each filter adds a program."""
    with contextlib.suppress(OSError):
        entries = sorted(place.iterdir(), key=lambda path: path.lstat().st_mtime)
        for path in entries[:-_MOST_ENTRIES]:
            path.unlink(missing_ok=True)
