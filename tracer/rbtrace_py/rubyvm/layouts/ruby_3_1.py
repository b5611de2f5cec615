"""Ruby 3.1, x86-64.

Verified by the DWARF of 3.1.0, 3.1.2, and 3.1.7, compiled from their releases. Since
3.1.5 there is a new member, ``rb_vm_t.loaded_features_realpath_map``, which moves the
members after it. The fields needed for a walk were also verified with Debian's running
3.1.2 and its rb_mjit_min_header.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rbtrace_py.rubyvm.layout import Differences, Field, changed
from rbtrace_py.rubyvm.layouts import ruby_3_0 as before

NEWEST = 7
"""The newest patch release that verified this."""

TRAITS = replace(
    before.TRAITS,
    native_id_is_tid=True,
    last_operator_id=169,
)

FIELDS = changed(
    before.FIELDS,
    {
        "ec_thread": 48,
        "ec_fiber": 40,
        "cfp_size": 64,
        "cfp_jit_return": Field(56, "rb_control_frame_t.jit_return"),
        "th_name": 352,
        "th_status": 92,
        "th_native_id": Field(88, "rb_thread_t.tid"),
        "th_root_fiber": 328,
        "vm_objspace": 1104,
        "line_size": 12,
        "fiber_prev": 512,
        "fiber_status": 528,
        "objspace_count": Field(440, "rb_objspace_t.profile.count"),
        "th_locking_mutex": 264,
        "th_scheduler": 336,
        "th_gvl_node": 104,
        "locals_count": 240,
    },
)

CHANGES: Mapping[int, Differences] = {
    # ``rb_vm_t.loaded_features_realpath_map`` was inserted before this member.
    5: {
        "vm_objspace": 1112,
    },
}
"""Differences by the first patch release that has them."""
