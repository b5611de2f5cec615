"""Origin of a source file, by its path: a gem, Ruby itself, or the application."""

from __future__ import annotations

import re
from functools import lru_cache

_GEM = re.compile(r".*/gems/([^/]+-(?:\d[^/]*|[0-9a-f]{7,40}))/(.+)")
"""``…/gems/puma-5.6.5/lib/puma.rb``; of Bundler's git sources the commit."""

_STANDARD = re.compile(
    r".*/lib\d*/(?:[^/]+/)?ruby/"
    r"(?:\d+\.\d+\.\d+(?:\+\d+)?|vendor_ruby|site_ruby)/.+"
    r"|/usr/share/ruby/.+"
)
"""``/usr/lib/ruby/3.1.0/timeout.rb``: RbConfig's rubylibdir, and what is beside it.

Previews of Ruby have ``4.0.0+1``; Fedora and RHEL have ``/usr/share/ruby`` alone.
"""

_KNOWN = 1 << 14


@lru_cache(_KNOWN)
def gem_path(path: str) -> tuple[str, str] | None:
    """``puma-5.6.5`` and ``lib/puma.rb``, None for a file of no gem."""
    found = _GEM.fullmatch(path)
    return (found[1], found[2]) if found else None


@lru_cache(_KNOWN)
def is_library(path: str) -> bool:
    """Is it a file of a gem, or of Ruby and its standard library?"""
    if path.startswith("<internal:"):
        return True
    return gem_path(path) is not None or _STANDARD.fullmatch(path) is not None
