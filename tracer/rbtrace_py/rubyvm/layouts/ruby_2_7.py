"""Ruby 2.7, x86-64.

Verified by the DWARF of 2.7.0, 2.7.4, and 2.7.8, compiled from their releases, which
agree. The fields needed for a walk were also verified with Debian's running 2.7.4 and
its rb_mjit_min_header.
"""

from __future__ import annotations

from dataclasses import replace

from rbtrace_py.rubyvm.layout import Field, changed
from rbtrace_py.rubyvm.layouts import ruby_2_6 as before

NEWEST = 8
"""The newest patch release that verified this."""

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
        "objspace_count": Field(424, "rb_objspace_t.profile.count"),
        "th_locking_mutex": Field(248, "rb_thread_t.locking_mutex"),
        "th_gvl_node": Field(88, "rb_thread_t.native_thread_data.node.gvl"),
        "gvl_queue": Field(56, "rb_vm_t.gvl.waitq"),
        "gvl_holder": Field(8, "rb_vm_t.gvl.owner"),
        "mutex_owner": Field(0, "rb_mutex_struct.th"),
        "queue_items": Field(24, "rb_queue.que"),
        "queue_waiting": Field(32, "rb_queue.num_waiting"),
        "queue_pushing": Field(36, "rb_szqueue.num_waiting_push"),
        "queue_most": Field(56, "rb_szqueue.max"),
        "data_pointer": Field(32, "RTypedData.data"),
        "file_io": Field(16, "RFile.fptr"),
        "io_fd": Field(8, "rb_io_t.fd"),
        "io_pid": Field(16, "rb_io_t.pid"),
        "locals_names": Field(152, "rb_iseq_constant_body.local_table"),
        "locals_params": Field(16, "rb_iseq_constant_body.param"),
        "locals_block": Field(44, "rb_iseq_constant_body.param.block_start"),
        "locals_count": Field(232, "rb_iseq_constant_body.local_table_size"),
    },
)
