"""Ruby 4.1, x86-64, from its development branch, because it is not released yet.

Verified by the DWARF of builds of 28 July and 7 August 2026 (120c8fa88c, ac8d936d60),
and with programs running on them. The release may move members.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rbtrace_py.rubyvm.layout import Differences, Field, changed
from rbtrace_py.rubyvm.layouts import ruby_4_0 as before

NEWEST = 0
"""The newest patch release that has this layout, as far as is known."""

TRAITS = replace(
    before.TRAITS,
    symbols_in_data=True,
    data_may_be_embedded=True,
    has_jit_frames=True,
)

FIELDS = changed(
    before.FIELDS,
    {
        "cfp_iseq": Field(16, "rb_control_frame_t._iseq"),
        "th_name": 456,
        "th_root_fiber": 432,
        "th_locking_mutex": 360,
        "th_scheduler": 440,
        "vm_objspace": 1368,
        "ractor_threads": 240,
        "ractor_running_ec": 376,
        "ractor_main_thread": 384,
        "ractor_list_node": 432,
        "gvl_queue": 336,
        "gvl_holder": 312,
        "class_path": 48,
        "class_attached": 128,
        "fiber_ec": 88,
        "fiber_prev": 544,
        "fiber_status": 560,
        "objspace_flags": 76,
        "objspace_count": 2168,
        "jit_frame_size": Field(24, "sizeof zjit_jit_frame"),
        "jit_frame_pc": Field(0, "zjit_jit_frame.pc"),
        "jit_frame_iseq": Field(8, "zjit_jit_frame.iseq"),
        "jit_frame_map_size": Field(20, "zjit_jit_frame.stack_size"),
        "jit_frame_map": Field(24, "zjit_jit_frame.stack"),
        "queue_items": None,
        "queue_length": Field(32, "rb_queue.len"),
        "queue_waiting": 56,
        "queue_pushing": 64,
        "queue_most": 88,
    },
)

DEVELOPMENT: Mapping[str, Differences] = {
    "28 July 2026": {},
    # Each ractor has its own object space.
    "7 August 2026": {
        "vm_main_thread": 56,
        "vm_main_ractor": 48,
        "vm_objspace": None,
        "ractor_objspace": Field(552, "rb_ractor_t.objspace"),
        "ractor_threads": 248,
        "ractor_running_ec": 384,
        "ractor_main_thread": 392,
        "ractor_list_node": 440,
        "gvl_queue": 344,
        "gvl_holder": 320,
        "fiber_prev": 552,
        "fiber_status": 568,
        "objspace_gc_bit": 6,
        "objspace_count": 2584,
    },
}
"""Differences of revisions of the development branch, by date. The first difference
that the program's memory does not contradict is used."""
