"""Ruby 2.3, x86-64.

Verified by the DWARF of 2.3.0 and 2.3.8, compiled from their releases. Since 2.3.5
there is a new member, ``rb_vm_t.waiting_fds``, which moves the members after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rbtrace_py.rubyvm.layout import Differences, Field, changed
from rbtrace_py.rubyvm.layouts import ruby_2_2 as before
from rbtrace_py.rubyvm.layouts.frames import IN_FLAG_2_3

NEWEST = 8
"""The newest patch release that verified this."""

TRAITS = replace(
    before.TRAITS,
    method_in_ep=True,
    frame_magics=IN_FLAG_2_3,
    iseq_imemo=7,
    ment_imemo=6,
    svar_imemo=2,
    last_operator_id=168,
    imemo_mask=0x7,
)

FIELDS = changed(
    before.FIELDS,
    {
        "ec_fiber": 768,
        "cfp_size": 64,
        "cfp_ep": 40,
        "th_name": Field(1016, "rb_thread_t.name"),
        "th_root_fiber": 776,
        "vm_objspace": 1584,
        "iseq_body": Field(16, "rb_iseq_t.body"),
        "body_type": Field(0, "rb_iseq_constant_body.type"),
        "body_size": Field(12, "rb_iseq_constant_body.iseq_size"),
        "body_encoded": Field(16, "rb_iseq_constant_body.iseq_encoded"),
        "body_path": Field(72, "rb_iseq_constant_body.location.path"),
        "body_real_path": Field(80, "rb_iseq_constant_body.location.absolute_path"),
        "body_base_label": Field(88, "rb_iseq_constant_body.location.base_label"),
        "body_label": Field(96, "rb_iseq_constant_body.location.label"),
        "body_first_line": Field(104, "rb_iseq_constant_body.location.first_lineno"),
        "body_lines": Field(112, "rb_iseq_constant_body.line_info_table"),
        "body_line_count": Field(200, "rb_iseq_constant_body.line_info_size"),
        "body_parent": Field(136, "rb_iseq_constant_body.parent_iseq"),
        "body_local": Field(144, "rb_iseq_constant_body.local_iseq"),
        "me_flags": Field(0, "rb_callable_method_entry_t.flags"),
        "me_defined_class": Field(8, "rb_callable_method_entry_t.defined_class"),
        "me_def": Field(16, "rb_callable_method_entry_t.def"),
        "me_called_id": Field(24, "rb_callable_method_entry_t.called_id"),
        "me_owner": Field(32, "rb_callable_method_entry_t.owner"),
        "def_original_id": 40,
        "fiber_prev": 1312,
        "fiber_status": 1320,
        "cfp_me": None,
        "cfp_class": None,
    },
)

CHANGES: Mapping[int, Differences] = {
    # ``rb_vm_t.waiting_fds`` was inserted before these members.
    5: {
        "vm_threads": 312,
        "vm_objspace": 1600,
    },
}
"""Differences by the first patch release that has them."""
