"""Probes whose attaching can harm the target, through no doing of the tracer's.

CRuby 3.0 and later keeps the name of its internal class FrozenCore, whose
methods a lambda literal and others call, where its garbage collector does not
look. After the collector has run, the cmethod probes, which name the class, read
freed memory: seen on 3.1.2 as other strings' bytes for a class name, and as a
crash (`rb_dtrace_setup` in vm.c; 2.7 makes the name anew each time). Every tool
that attaches makes Ruby run that code.

Other probes, new in Ruby 4.1, fire at each allocation. Each hit is a trap into the
kernel, so that a program may spend most of its time there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rbtrace_py.model.probes import Probe

_CMETHOD = ("cmethod__entry", "cmethod__return")
_ALLOCATION = ("obj_new", "obj_free", "xmalloc", "xcalloc", "xfree")
_ALLOCATIONS = tuple(f"gc__{name}" for name in _ALLOCATION)
_VERSION = re.compile(r"(?:lib)?ruby[-.]?(\d)\.(\d)")
_SAFE_BEFORE = (3, 0)


@dataclass(frozen=True, slots=True)
class Hazard:
    """Harm that attaching to some probes can do.

    text: the warning
    others: advice on what is possible without this harm
    """

    text: str
    others: str

    @property
    def hint(self) -> str:
        """Advice for a user who does not confirm it."""
        return f"Use --yes to attach anyway; {self.others}"


CMETHODS = Hazard(
    "Ruby's cmethod probes can crash this process: since Ruby 3.0 they may read"
    " freed memory when the program evaluates a lambda literal (a bug in Ruby,"
    " whichever tool attaches)",
    "`raise`, `gc` and the others are safe",
)
ALLOCATIONS = Hazard(
    "Ruby's probes of allocations can fire a million times per second, and each hit"
    " takes this process about 0.6 µs: it may run at half its speed meanwhile",
    "`stacks --on` detaches by itself above 5 % of a CPU",
)


def hazard(probe: Probe, has_limit: bool = False) -> Hazard | None:
    """Return the harm that attaching to a probe can do to the target.

    has_limit: True if the caller detaches when the hits take too much CPU
    """
    if probe.provider != "ruby":
        return None
    if probe.name in _ALLOCATIONS and not has_limit:
        return ALLOCATIONS
    if probe.name not in _CMETHOD:
        return None
    found = _VERSION.search(probe.binary.path.rpartition("/")[2])
    is_safe = found and (int(found[1]), int(found[2])) < _SAFE_BEFORE
    return None if is_safe else CMETHODS


def hazards(probes: Sequence[Probe], has_limit: bool = False) -> list[Hazard]:
    """Return the harms to confirm before attaching to these probes."""
    found = (hazard(probe, has_limit) for probe in probes)
    return list(dict.fromkeys(filter(None, found)))
