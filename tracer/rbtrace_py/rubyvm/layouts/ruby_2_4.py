"""Ruby 2.4, x86-64.

Verified by the DWARF of 2.4.0 and 2.4.10, compiled from their releases. Since 2.4.2
there is a new member, ``rb_vm_t.waiting_fds``, which moves the members after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rbtrace_py.rubyvm.layout import Differences, changed
from rbtrace_py.rubyvm.layouts import ruby_2_3 as before
from rbtrace_py.rubyvm.layouts.frames import IN_EP_2_4, IN_EP_2_4_MASK

NEWEST = 10
"""The newest patch release that verified this."""

TRAITS = replace(
    before.TRAITS,
    flags_in_ep=True,
    frame_magic_mask=IN_EP_2_4_MASK,
    frame_magics=IN_EP_2_4,
    old_tables=False,
)

FIELDS = changed(
    before.FIELDS,
    {
        "ec_fiber": 752,
        "cfp_size": 48,
        "cfp_self": 24,
        "cfp_ep": 32,
        "th_name": 1000,
        "th_status": 144,
        "th_native_id": 136,
        "th_root_fiber": 760,
        "body_size": 4,
        "body_encoded": 8,
        "body_path": 64,
        "body_real_path": 72,
        "body_base_label": 80,
        "body_label": 88,
        "body_first_line": 96,
        "body_lines": 104,
        "body_line_count": 192,
        "body_parent": 128,
        "body_local": 136,
        "fiber_prev": 1296,
        "fiber_status": 1304,
        "cfp_flag": None,
    },
)

CHANGES: Mapping[int, Differences] = {
    # ``rb_vm_t.waiting_fds`` was inserted before these members.
    2: {
        "vm_threads": 312,
        "vm_objspace": 1600,
    },
}
"""Differences by the first patch release that has them."""
