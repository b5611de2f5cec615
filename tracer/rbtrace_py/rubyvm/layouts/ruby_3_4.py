"""Ruby 3.4, x86-64.

Verified by the DWARF of 3.4.0, 3.4.5, and 3.4.9, compiled from their releases, which
agree. The fields needed for a walk were also verified with Debian's running 3.4.11.
"""

from __future__ import annotations

from dataclasses import replace

from rbtrace_py.rubyvm.layout import Field, changed
from rbtrace_py.rubyvm.layouts import ruby_3_3 as before

NEWEST = 11
"""The newest patch release that verified this."""

TRAITS = replace(
    before.TRAITS,
    singleton_bit=13,
    last_operator_id=170,
    qualified_labels=True,
    # array.rb and numeric.rb of 3.4.0 to 3.4.9, within with_yjit.
    c_traced=(
        "<internal:array> each",
        "<internal:array> map",
        "<internal:array> select",
        "<internal:numeric> downto",
    ),
)

FIELDS = changed(
    before.FIELDS,
    {
        "th_name": 448,
        "th_root_fiber": 424,
        "vm_objspace": Field(1296, "rb_vm_t.gc.objspace"),
        "fiber_prev": 504,
        "fiber_status": 520,
        "objspace_flags": 20,
        "objspace_count": 1008,
        "th_scheduler": 432,
    },
)
