"""Ruby 3.2, x86-64.

Verified by the DWARF of 3.2.0, 3.2.2, 3.2.3, 3.2.7, and 3.2.11, compiled from their
releases. 3.2.3 and 3.2.7 have new members of ``rb_vm_t``, which move the members after
them. The fields needed for a walk were also verified with a running 3.2.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rbtrace_py.rubyvm.layout import ClassPath, Differences, Field, StringStyle, changed
from rbtrace_py.rubyvm.layouts import ruby_3_1 as before

NEWEST = 11
"""The newest patch release that verified this."""

TRAITS = replace(
    before.TRAITS,
    class_path=ClassPath.FIRST_IVAR,
    string_style=StringStyle.LENGTH_FIRST,
    first_line_is_fixnum=False,
    qnil=4,
    autoloads_without_mutex=False,
)

FIELDS = changed(
    before.FIELDS,
    {
        "th_ec": 48,
        "th_name": 304,
        "th_status": 112,
        "th_native_thread": Field(40, "rb_thread_t.nt"),
        "th_root_fiber": 280,
        "nt_tid": Field(16, "rb_native_thread.tid"),
        "vm_objspace": 1128,
        "body_last_line": 104,
        "body_lines": 112,
        "body_line_positions": 120,
        "body_line_count": 128,
        "body_line_index": 136,
        "body_parent": 160,
        "body_local": 168,
        "body_call_data": 184,
        "class_first_ivar": Field(32, "sizeof RClass + rb_classext_t.iv_ptr"),
        "fiber_prev": 520,
        "fiber_status": 536,
        "objspace_count": 1280,
        "th_locking_mutex": 216,
        "th_scheduler": 288,
        "th_gvl_node": Field(56, "rb_thread_t.sched.node.readyq"),
        "gvl_queue": Field(384, "rb_ractor_t.threads.sched.readyq"),
        "gvl_holder": Field(336, "rb_ractor_t.threads.sched.running"),
        "locals_names": 144,
        "locals_count": 232,
        "th_native_id": None,
        "class_ext": None,
        "ext_ivars": None,
    },
)

CHANGES: Mapping[int, Differences] = {
    # ``rb_vm_t.loaded_features_realpath_map`` was inserted before this member.
    3: {
        "vm_objspace": 1136,
    },
    # ``rb_vm_t.inserting_constant_cache_id`` was inserted before this member.
    7: {
        "vm_objspace": 1144,
    },
}
"""Differences by the first patch release that has them."""
