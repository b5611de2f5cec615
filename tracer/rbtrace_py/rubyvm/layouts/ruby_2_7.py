"""Ruby 2.7, x86-64.

Verified: DWARF of 2.7.0, 2.7.4 and 2.7.8 as compiled from their releases; they agree.
The fields of a walk also on Debian's running 2.7.4, and what its
rb_mjit_min_header has.
"""

from __future__ import annotations

from dataclasses import replace

from rbtrace_py.rubyvm.layout import Field, changed
from rbtrace_py.rubyvm.layouts import ruby_2_6 as before

NEWEST = 8
"""The newest patch release that this was verified with."""

TRAITS = replace(
    before.TRAITS,
    last_operator_id=168,
)

FIELDS = changed(
    before.FIELDS,
    {
        "th_name": 360,
        "th_root_fiber": 312,
        "vm_objspace": 1152,
        "body_call_data": Field(192, "rb_iseq_constant_body.call_data"),
        "call_size": Field(80, "sizeof rb_call_data"),
        "call_mid": Field(64, "rb_call_data.ci.mid"),
        "call_me": Field(32, "rb_call_data.cc.me"),
        "symbols_last_id": Field(0, "rb_symbols_t.last_id"),
        "symbols_ids": Field(16, "rb_symbols_t.ids"),
        "fiber_prev": 520,
        "fiber_ec": 80,
        "fiber_status": 528,
    },
)
