"""Offsets of the frame fields that the agent's hook reads.

With them, the hook reads a method's class and name itself, and identifies the stack.
Without them, it calls Ruby, which is slower. It compares its first results with Ruby's,
and stops using the offsets if they differ (docs/agent/arming.md).
"""

from __future__ import annotations

from rbtrace_py.errors import RbtraceError
from rbtrace_py.linux.process import Process
from rbtrace_py.rubyvm.attach import attach
from rbtrace_py.rubyvm.layout import Layout


def hook_offsets(process: Process) -> dict[str, int] | None:
    """Return the argument ``offsets`` of ``arm``; None: the layout is not trusted."""
    try:
        return offsets_of(attach(process).layout)
    except (RbtraceError, OSError):
        return None


def offsets_of(layout: Layout) -> dict[str, int] | None:
    """Return the offsets of docs/agent/arming.md; None: this Ruby's frames differ."""
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
