"""Ruby 2.2, x86-64.

An iseq is not an object and has no body.

Verified by the DWARF of 2.2.0 and 2.2.10, compiled from their releases, which agree.
"""

from __future__ import annotations

from dataclasses import replace

from rbtrace_py.rubyvm.layout import Field, ThreadList, changed
from rbtrace_py.rubyvm.layouts import ruby_2_1 as before

NEWEST = 10
"""The newest patch release that verified this."""

TRAITS = replace(
    before.TRAITS,
    thread_list=ThreadList.LIST,
    first_line_is_fixnum=True,
    symbol_shift=4,
    last_operator_id=166,
)

FIELDS = changed(
    before.FIELDS,
    {
        "ec_vm_stack": 32,
        "ec_vm_stack_size": 40,
        "ec_cfp": 48,
        "ec_fiber": Field(760, "rb_thread_t.fiber"),
        "th_vm": 24,
        "th_self": 16,
        "th_status": 152,
        "th_native_id": 144,
        "th_list_node": Field(0, "rb_thread_t.vmlt_node"),
        "th_root_fiber": Field(768, "rb_thread_t.root_fiber"),
        "vm_objspace": 1592,
        "body_size": 56,
        "body_encoded": 48,
        "body_lines": 80,
        "body_line_count": 60,
        "body_parent": 184,
        "body_local": 192,
        "symbols_ids": Field(16, "symbols.ids"),
        "fiber_prev": Field(1296, "rb_fiber_t.prev"),
        "fiber_ec": Field(72, "rb_fiber_t.cont.saved_thread"),
        "fiber_status": Field(1304, "rb_fiber_t.status"),
        "objspace_flags": Field(16, "rb_objspace_t.flags"),
        "objspace_gc_bit": 5,
    },
)
