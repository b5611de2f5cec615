"""Probes whose attaching can harm the target, through no doing of the tracer's.

CRuby 3.0 and later keeps the name of its internal class FrozenCore, whose
methods a lambda literal and others call, where its garbage collector does not
look. Once the collector has run, the cmethod probes, which name the class,
read freed memory: seen on 3.1.2 as other strings' bytes for a class name, and
as a crash (`rb_dtrace_setup` in vm.c; 2.7 makes the name anew each time).
Whoever attaches, with whatever tool, makes Ruby run that code.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rbtrace_py.model.probes import Probe

_CMETHOD = ("cmethod__entry", "cmethod__return")
_VERSION = re.compile(r"(?:lib)?ruby[-.]?(\d)\.(\d)")
_SAFE_BEFORE = (3, 0)

CMETHOD_HAZARD = (
    "Ruby's cmethod probes can crash this process: since Ruby 3.0 they may read"
    " freed memory when the program evaluates a lambda literal (a bug in Ruby,"
    " whichever tool attaches)"
)
CMETHOD_HINT = "Use --yes to attach anyway; `raise`, `gc` and the others are safe"


def is_hazardous(probe: Probe) -> bool:
    """May attaching to this probe crash the target?"""
    if probe.provider != "ruby" or probe.name not in _CMETHOD:
        return False
    found = _VERSION.search(probe.binary.path.rpartition("/")[2])
    return found is None or (int(found[1]), int(found[2])) >= _SAFE_BEFORE


def hazard(probes: Sequence[Probe]) -> str | None:
    """Return the warning to give before attaching to these, or None."""
    return CMETHOD_HAZARD if any(map(is_hazardous, probes)) else None
