"""Probes that can harm the target when they are attached, with any tracer.

Since 3.0, CRuby stores the name of its internal class FrozenCore where its garbage
collector does not mark it. A lambda literal, for example, calls a method of this class.
After a collection, the cmethod probes, which have the class's name as an argument, read
freed memory. On 3.1.2, the class name had bytes of other strings, and Ruby crashed
(`rb_dtrace_setup` in vm.c; 2.7 creates the name each time). Any tool that attaches
makes Ruby run this code.

Other probes, new in Ruby 4.1, fire at each allocation. Each hit traps into the kernel,
so that a program may spend most of its time there.
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

    Attributes:
        text: The warning.
        others: Alternatives without this harm.
    """

    text: str
    others: str

    @property
    def hint(self) -> str:
        """Hint for a user who does not confirm it."""
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

    Args:
        probe: The probe.
        has_limit: True if the caller detaches when the hits take too much CPU.
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
