"""Ruby 2.5, x86-64.

Verified by the DWARF of 2.5.0, 2.5.1, and 2.5.9, compiled from their releases. Since
2.5.4 there is a new member, ``rb_vm_t.fork_gen``, which moves the members after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rbtrace_py.rubyvm.layout import Differences, Field, changed
from rbtrace_py.rubyvm.layouts import ruby_2_4 as before
from rbtrace_py.rubyvm.layouts.frames import IN_EP_2_5

NEWEST = 9
"""The newest patch release that verified this."""

TRAITS = replace(
    before.TRAITS,
    frame_magics=IN_EP_2_5,
    last_operator_id=166,
    imemo_mask=0xF,
)

FIELDS = changed(
    before.FIELDS,
    {
        "ec_vm_stack": Field(0, "rb_execution_context_t.vm_stack"),
        "ec_vm_stack_size": Field(8, "rb_execution_context_t.vm_stack_size"),
        "ec_cfp": Field(16, "rb_execution_context_t.cfp"),
        "ec_thread": Field(72, "rb_execution_context_t.thread_ptr"),
        "ec_fiber": Field(64, "rb_execution_context_t.fiber_ptr"),
        "th_ec": Field(32, "rb_thread_t.ec"),
        "th_name": 560,
        "th_status": 80,
        "th_native_id": 72,
        "th_root_fiber": 328,
        "vm_threads": 312,
        "vm_objspace": 1168,
        "body_path": Field(64, "rb_iseq_constant_body.location.pathobj"),
        "body_base_label": 72,
        "body_label": 80,
        "body_first_line": 88,
        "body_lines": Field(112, "rb_iseq_constant_body.insns_info"),
        "body_line_count": Field(200, "rb_iseq_constant_body.insns_info_size"),
        "body_parent": 136,
        "body_local": 144,
        "line_size": Field(12, "sizeof iseq_insn_info_entry"),
        "line_number": Field(4, "iseq_insn_info_entry.line_no"),
        "line_position": Field(0, "iseq_insn_info_entry.position"),
        "def_body": 8,
        "def_original_id": 32,
        "fiber_prev": 688,
        "fiber_ec": Field(72, "rb_fiber_t.cont.saved_ec"),
        "fiber_status": 696,
        "body_real_path": None,
    },
)

CHANGES: Mapping[int, Differences] = {
    # ``rb_vm_t.fork_gen`` was inserted before these members.
    4: {
        "vm_threads": 320,
        "vm_objspace": 1176,
    },
}
"""Differences by the first patch release that has them."""
