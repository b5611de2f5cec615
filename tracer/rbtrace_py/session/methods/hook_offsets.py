"""Offsets of the frame fields that the agent's hook reads.

With these the hook reads a method's class and name itself, and says whose stack it is;
without, it asks Ruby, which takes longer. It compares its first answers with Ruby's
own, and gives the offsets up if they differ (docs/agent/arming.md).
"""

from __future__ import annotations

from rbtrace_py.errors import RbtraceError
from rbtrace_py.linux.process import Process
from rbtrace_py.rubyvm.attach import attach
from rbtrace_py.rubyvm.layout import Layout


def hook_offsets(process: Process) -> dict[str, int] | None:
    """The argument ``offsets`` of ``arm``, None where the layout is not trusted."""
    try:
        return offsets_of(attach(process).layout)
    except (RbtraceError, OSError):
        return None


def offsets_of(layout: Layout) -> dict[str, int] | None:
    """By docs/agent/arming.md's names; None for a Ruby whose frames are otherwise."""
    offsets, traits = layout.offsets, layout.traits
    if not (traits.flags_in_ep and traits.method_in_ep):
        return None
    found = {
        "cfp_ep": offsets.cfp_ep,
        "me_owner": offsets.me_owner,
        "me_def": offsets.me_def,
        "def_original_id": offsets.def_original_id,
        "ment_imemo": traits.ment_imemo,
        "svar_imemo": traits.svar_imemo,
        "local_flag": traits.local_flag,
        "ec_thread": offsets.ec_thread,
    }
    known = {name: value for name, value in found.items() if value is not None}
    return known if len(known) == len(found) else None
