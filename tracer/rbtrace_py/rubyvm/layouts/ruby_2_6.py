"""Ruby 2.6, x86-64.

Verified by the DWARF of 2.6.0 and 2.6.10, compiled from their releases, which agree.
"""

from __future__ import annotations

from dataclasses import replace

from rbtrace_py.rubyvm.layout import Field, LineTable, changed
from rbtrace_py.rubyvm.layouts import ruby_2_5 as before
from rbtrace_py.rubyvm.layouts.frames import IN_EP, IN_EP_MASK

NEWEST = 10
"""The newest patch release that verified this."""

TRAITS = replace(
    before.TRAITS,
    line_table=LineTable.SUCCINCT,
    frame_magic_mask=IN_EP_MASK,
    frame_magics=IN_EP,
    last_operator_id=164,
)

FIELDS = changed(
    before.FIELDS,
    {
        "ec_thread": 56,
        "ec_fiber": 48,
        "cfp_size": 56,
        "th_name": 512,
        "th_root_fiber": 304,
        "vm_main_thread": 192,
        "vm_running_thread": 200,
        "vm_objspace": 1224,
        "body_last_line": Field(
            108, "rb_iseq_constant_body.location.code_location.end_pos.lineno"
        ),
        "body_lines": Field(120, "rb_iseq_constant_body.insns_info.body"),
        "body_line_positions": Field(128, "rb_iseq_constant_body.insns_info.positions"),
        "body_line_count": Field(136, "rb_iseq_constant_body.insns_info.size"),
        "body_line_index": Field(
            144, "rb_iseq_constant_body.insns_info.succ_index_table"
        ),
        "body_parent": 168,
        "body_local": 176,
        "line_size": 8,
        "line_number": 0,
        "fiber_prev": 672,
        "fiber_status": 680,
        "line_position": None,
    },
)
