"""Ruby 4.0, x86-64.

Verified by the DWARF of 4.0.0 and 4.0.5, compiled from their releases, which agree. The
fields needed for a walk were also verified with a running 4.0.5. ``gvl_holder``,
``mutex_serial``, and ``ec_serial`` were verified by the DWARF of 4.0.5 only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rbtrace_py.rubyvm.layout import Differences, Field, changed
from rbtrace_py.rubyvm.layouts import ruby_3_4 as before

NEWEST = 5
"""The newest patch release that verified this."""

TRAITS = replace(
    before.TRAITS,
    last_operator_id=171,
    internal_as_c=True,
    type_has_flag=True,
    owner_is_thread=True,
    c_traced=(),
)

FIELDS = changed(
    before.FIELDS,
    {
        "th_status": 248,
        "vm_objspace": 1248,
        "ractor_threads": 184,
        "ractor_running_ec": 312,
        "ractor_main_thread": 320,
        "ractor_list_node": 360,
        "body_parent": 168,
        "body_local": 176,
        "body_call_data": 192,
        "class_super": Field(32, "RClass_and_rb_classext_t.classext.super"),
        "class_attached": 136,
        "symbols_last_id": Field(0, "rb_symbols_t.next_id"),
        "fiber_prev": 536,
        "fiber_status": 552,
        "objspace_flags": 28,
        "objspace_count": 1048,
        "th_locking_mutex": 352,
        "gvl_queue": 272,
        "gvl_holder": 256,
        "mutex_owner": Field(8, "rb_mutex_struct.th"),
        "mutex_serial": Field(0, "rb_mutex_struct.ec_serial"),
        "ec_serial": Field(56, "rb_execution_context_t.serial"),
        "locals_count": 240,
        "class_first_ivar": None,
        "class_fields": Field(40, "RClass_and_rb_classext_t.classext.fields_obj"),
        "fields_first": Field(16, "rb_fields.as.embed.fields"),
    },
)

CHANGES: Mapping[int, Differences] = {
    # Unverified, from the source only: ``rb_vm_t.master_box`` was inserted at the
    # beginning of the VM, and two pointers in ``struct rb_thread_sched`` before
    # ``running_ec``. The positions of the GVL's queue and holder are unknown.
    6: {
        "vm_objspace": 1256,
        "ractor_running_ec": 328,
        "ractor_main_thread": 336,
        "ractor_list_node": 376,
        "gvl_queue": None,
        "gvl_holder": None,
    },
}
"""Differences by the first patch release that has them."""
