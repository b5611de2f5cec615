"""Origin of a source file, by its path: a gem, Ruby itself, or the application."""

from __future__ import annotations

import re
from functools import lru_cache

_GEM = re.compile(r".*/gems/([^/]+-(?:\d[^/]*|[0-9a-f]{7,40}))/(.+)")
"""``…/gems/puma-5.6.5/lib/puma.rb``; a gem from git has a commit as its version."""

_STANDARD = re.compile(
    r".*/lib\d*/(?:[^/]+/)?ruby/"
    r"(?:\d+\.\d+\.\d+(?:\+\d+)?|vendor_ruby|site_ruby)/.+"
    r"|/usr/share/ruby/.+"
)
"""``/usr/lib/ruby/3.1.0/timeout.rb``: files in RbConfig's rubylibdir and its siblings.

Previews of Ruby use ``4.0.0+1``; Fedora and RHEL use ``/usr/share/ruby`` without a
version.
"""

_KNOWN = 1 << 14


@lru_cache(_KNOWN)
def gem_path(path: str) -> tuple[str, str] | None:
    """Return ``puma-5.6.5`` and ``lib/puma.rb``; None for a file outside gems."""
    found = _GEM.fullmatch(path)
    return (found[1], found[2]) if found else None


@lru_cache(_KNOWN)
def is_library(path: str) -> bool:
    """Return whether a file belongs to a gem, to Ruby, or to its standard library."""
    if path.startswith("<internal:"):
        return True
    return gem_path(path) is not None or _STANDARD.fullmatch(path) is not None
