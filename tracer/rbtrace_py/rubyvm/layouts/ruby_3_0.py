"""Ruby 3.0, x86-64.

Verified by the DWARF of 3.0.0, 3.0.2, and 3.0.7, compiled from their releases, which
agree. The fields needed for a walk were also verified with a running 3.0.7.
"""

from __future__ import annotations

from dataclasses import replace

from rbtrace_py.rubyvm.layout import Field, changed
from rbtrace_py.rubyvm.layouts import ruby_2_7 as before

NEWEST = 7
"""The newest patch release that verified this."""

TRAITS = replace(
    before.TRAITS,
    has_ractors=True,
    owner_is_thread=False,
)

FIELDS = changed(
    before.FIELDS,
    {
        "th_ec": 40,
        "th_vm": 32,
        "th_name": 384,
        "th_status": 88,
        "th_native_id": 80,
        "th_list_node": Field(0, "rb_thread_t.lt_node"),
        "th_ractor": Field(24, "rb_thread_t.ractor"),
        "th_root_fiber": 320,
        "vm_main_thread": Field(40, "rb_vm_t.ractor.main_thread"),
        "vm_ractors": Field(8, "rb_vm_t.ractor.set"),
        "vm_main_ractor": Field(32, "rb_vm_t.ractor.main_ractor"),
        "vm_objspace": 1088,
        "ractor_threads": Field(304, "rb_ractor_t.threads.set"),
        "ractor_running_ec": Field(520, "rb_ractor_t.threads.running_ec"),
        "ractor_main_thread": Field(528, "rb_ractor_t.threads.main"),
        "ractor_list_node": Field(568, "rb_ractor_t.vmlr_node"),
        "call_size": 16,
        "call_cache": Field(8, "rb_call_data.cc"),
        "call_me": Field(16, "rb_callcache.cme_"),
        "fiber_status": 536,
        "th_locking_mutex": 256,
        "th_scheduler": Field(368, "rb_thread_t.scheduler"),
        "th_gvl_node": 96,
        "gvl_queue": Field(384, "rb_ractor_t.threads.gvl.waitq"),
        "gvl_holder": Field(336, "rb_ractor_t.threads.gvl.owner"),
        "mutex_owner": Field(0, "rb_mutex_struct.fiber"),
        "io_fd": 16,
        "io_pid": 24,
        "vm_threads": None,
        "vm_running_thread": None,
        "call_mid": None,
        "objspace_count": None,
    },
)
