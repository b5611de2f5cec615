"""The agent's hook on method events, built from source for this machine.

One shared object serves every Ruby of an architecture. A wheel contains it. In a
checkout, or on another kind of machine, it is built when needed and cached for the
user.
"""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from rbtrace_py.errors import RbtraceError
from rbtrace_py.linux import cache
from rbtrace_py.linux.text import safe_text

BUILT = Path(__file__).parent / "built"
"""Builds in a wheel (setup.py), by the key of their source."""
SOURCES = Path(__file__).parent / "source" / "sources.txt"
"""The list of its sources, which ext/agent/build.rb and extconf.rb read too."""

_FLAGS = ["-std=gnu11", "-O2", "-fPIC", "-shared", "-nostdlib", "-fvisibility=hidden"]
_FLAGS += ["-fno-stack-protector"]
"""Flags as in ext/agent/build.rb. No library is linked: the process has them all."""
_COMPILERS = ("cc", "gcc", "clang")
_SECONDS = 60
_KIND = "agent"
_MOST_SAID = 400


class NotBuilt(RbtraceError):
    """There is no compiler, or it could not build the hook."""


def hook() -> bytes:
    """Return the shared object; raises NotBuilt with the missing requirement."""
    key = _key()
    kept = _carried(key) or _cached_hook(key)
    if kept is None:
        kept = _build(_compiler())
        cache.store(_KIND, key, base64.b64encode(kept).decode())
    return kept


def build_into(folder: Path) -> None:
    """Build it for a wheel, in which ``folder`` will be ``BUILT``; raises NotBuilt."""
    built = _build(_compiler())
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{_key()}.so").write_bytes(built)


def _key() -> str:
    words = [platform.machine(), *_FLAGS]
    return hashlib.sha256("\0".join(words).encode() + _source()).hexdigest()


def _carried(key: str) -> bytes | None:
    try:
        return (BUILT / f"{key}.so").read_bytes()
    except OSError:
        return None


def _sources() -> list[Path]:
    return [SOURCES.parent / name for name in SOURCES.read_text().split()]


def _source() -> bytes:
    """Return all of the source, from which the key is computed."""
    try:
        headers = sorted((SOURCES.parent / "hook").glob("*.h"))
        return b"\0".join(path.read_bytes() for path in (*_sources(), *headers))
    except OSError as error:
        raise NotBuilt(
            f"the agent's source is missing: {error.filename}: {error.strerror}",
            "Reinstall rbtrace-py",
        ) from error


def _cached_hook(key: str) -> bytes | None:
    found = cache.load(_KIND, key)
    return base64.b64decode(found) if isinstance(found, str) else None


def _compiler() -> list[str]:
    """Return ``$CC`` if it is set, else the first compiler found."""
    configured = shlex.split(os.environ.get("CC", ""))
    names = configured[:1] or _COMPILERS
    if found := next(filter(None, map(shutil.which, names)), None):
        return [found, *configured[1:]]
    what = f"no C compiler {configured[0]} (CC)" if configured else "no C compiler"
    raise NotBuilt(
        f"{what} found to build the agent's hook",
        "Run apt-get install gcc libc6-dev; or use --no-hook, without method events",
    )


def _build(compiler: list[str]) -> bytes:
    with TemporaryDirectory(prefix="rbtrace-py-") as folder:
        output = Path(folder) / "agent_hook.so"
        try:
            done = subprocess.run(
                [*compiler, *_FLAGS, "-o", str(output), *map(str, _sources())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=_SECONDS,
                check=False,
                env={**os.environ, "LC_ALL": "C"},
            )
            if done.returncode == 0:
                return output.read_bytes()
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _not_built(compiler, str(error).encode()) from error
    raise _not_built(compiler, done.stderr)


def _not_built(compiler: list[str], said: bytes) -> NotBuilt:
    """Build the error with the first line that contains "error", or the first line."""
    lines = said.splitlines() or [b"no reason given"]
    line = next((line for line in lines if b"error" in line.lower()), lines[0])
    return NotBuilt(
        f"{compiler[0]} could not build the agent's hook:"
        f" {safe_text(line.strip(), _MOST_SAID)}",
        "Install the C library's headers: apt-get install gcc libc6-dev; or use"
        " --no-hook, without method events",
    )
