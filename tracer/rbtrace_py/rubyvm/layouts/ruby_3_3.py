"""Ruby 3.3, x86-64.

Verified by the DWARF of 3.3.0, 3.3.8, and 3.3.11, compiled from their releases, which
agree. The fields needed for a walk were also verified with Debian's running 3.3.8.
"""

from __future__ import annotations

from dataclasses import replace

from rbtrace_py.rubyvm.layout import ClassPath, Field, changed
from rbtrace_py.rubyvm.layouts import ruby_3_2 as before

NEWEST = 11
"""The newest patch release that verified this."""

TRAITS = replace(
    before.TRAITS,
    class_path=ClassPath.EXTENSION,
    promoted=0x20,
)

FIELDS = changed(
    before.FIELDS,
    {
        "cfp_size": 56,
        "cfp_jit_return": 48,
        "th_name": 432,
        "th_status": 240,
        "th_root_fiber": 408,
        "nt_tid": 24,
        "vm_objspace": 1304,
        "ractor_threads": 256,
        "ractor_running_ec": 384,
        "ractor_main_thread": 392,
        "ractor_list_node": 432,
        "objspace_count": 1392,
        "th_locking_mutex": 344,
        "th_scheduler": 416,
        "th_gvl_node": 72,
        "gvl_queue": 344,
        "gvl_holder": 328,
        "class_path": Field(152, "RClass_and_rb_classext_t.classext.classpath"),
        "class_attached": Field(
            128, "RClass_and_rb_classext_t.classext.as.singleton_class.attached_object"
        ),
    },
)
