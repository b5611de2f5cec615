"""Ruby 2.1, x86-64.

An iseq is not an object and has no body. Symbol names are in an st_table by ID. The
fibers of a thread are Ruby objects, so their fields are missing here.

Verified by the DWARF of 2.1.10, compiled from its release. The headers and the
beginning of ``rb_objspace`` are unchanged since 2.1.0 as far as they are used here. The
offsets of symbols, whose unit (parse.c) was not compiled, are computed from the
structure.
"""

from __future__ import annotations

from collections.abc import Mapping

from rbtrace_py.rubyvm.layout import (
    ClassPath,
    Field,
    LineTable,
    StringStyle,
    ThreadList,
    Traits,
)
from rbtrace_py.rubyvm.layouts.frames import IN_FLAG, IN_FLAG_MASK

NEWEST = 10
"""The newest patch release that verified this."""

TRAITS = Traits(
    line_table=LineTable.POSITION_IN_ENTRY,
    thread_list=ThreadList.ST_TABLE,
    class_path=ClassPath.IVAR_TABLE,
    string_style=StringStyle.LENGTH_IN_FLAGS,
    has_ractors=False,
    flags_in_ep=False,
    method_in_ep=False,
    first_line_is_fixnum=False,
    native_id_is_tid=False,
    qnil=8,
    singleton_bit=12,
    frame_magic_mask=IN_FLAG_MASK,
    frame_magics=IN_FLAG,
    local_flag=0x2,
    iseq_imemo=None,
    ment_imemo=None,
    svar_imemo=None,
    symbol_shift=3,
    last_operator_id=164,
    old_tables=True,
)

FIELDS: Mapping[str, Field] = {
    # Execution context
    "ec_vm_stack": Field(16, "rb_thread_t.stack"),
    "ec_vm_stack_size": Field(24, "rb_thread_t.stack_size"),
    "ec_cfp": Field(32, "rb_thread_t.cfp"),
    # Control frame
    "cfp_size": Field(80, "sizeof rb_control_frame_t"),
    "cfp_pc": Field(0, "rb_control_frame_t.pc"),
    "cfp_sp": Field(8, "rb_control_frame_t.sp"),
    "cfp_iseq": Field(16, "rb_control_frame_t.iseq"),
    "cfp_self": Field(32, "rb_control_frame_t.self"),
    "cfp_ep": Field(48, "rb_control_frame_t.ep"),
    "cfp_flag": Field(24, "rb_control_frame_t.flag"),
    "cfp_me": Field(72, "rb_control_frame_t.me"),
    "cfp_class": Field(40, "rb_control_frame_t.klass"),
    # Thread
    "th_vm": Field(8, "rb_thread_t.vm"),
    "th_self": Field(0, "rb_thread_t.self"),
    "th_status": Field(136, "rb_thread_t.status"),
    "th_native_id": Field(128, "rb_thread_t.thread_id"),
    # VM
    "vm_threads": Field(296, "rb_vm_t.living_threads"),
    "vm_main_thread": Field(280, "rb_vm_t.main_thread"),
    "vm_running_thread": Field(288, "rb_vm_t.running_thread"),
    "vm_objspace": Field(1584, "rb_vm_t.objspace"),
    "body_type": Field(0, "rb_iseq_t.type"),
    "body_size": Field(64, "rb_iseq_t.iseq_size"),
    "body_encoded": Field(56, "rb_iseq_t.iseq_encoded"),
    "body_path": Field(8, "rb_iseq_t.location.path"),
    "body_real_path": Field(16, "rb_iseq_t.location.absolute_path"),
    "body_base_label": Field(24, "rb_iseq_t.location.base_label"),
    "body_label": Field(32, "rb_iseq_t.location.label"),
    "body_first_line": Field(40, "rb_iseq_t.location.first_lineno"),
    "body_lines": Field(88, "rb_iseq_t.line_info_table"),
    "body_line_count": Field(96, "rb_iseq_t.line_info_size"),
    "body_parent": Field(240, "rb_iseq_t.parent_iseq"),
    "body_local": Field(248, "rb_iseq_t.local_iseq"),
    # Line table
    "line_size": Field(8, "sizeof iseq_line_info_entry"),
    "line_number": Field(4, "iseq_line_info_entry.line_no"),
    "line_position": Field(0, "iseq_line_info_entry.position"),
    # Method entry and definition
    "me_def": Field(8, "rb_method_entry_t.def"),
    "me_called_id": Field(16, "rb_method_entry_t.called_id"),
    "me_owner": Field(24, "rb_method_entry_t.klass"),
    "def_type": Field(0, "rb_method_definition_t.type"),
    "def_body": Field(16, "rb_method_definition_t.body"),
    "def_original_id": Field(8, "rb_method_definition_t.original_id"),
    # Class
    "class_super": Field(16, "RClass.super"),
    "class_ext": Field(24, "RClass.ptr"),
    "ext_ivars": Field(8, "rb_classext_t.iv_tbl"),
    # Global symbols
    "symbols_last_id": Field(0, "symbols.last_id"),
    "symbols_ids": Field(16, "symbols.id_str"),
    # Collector
    "objspace_flags": Field(232, "rb_objspace_t.flags.during_gc"),
    "objspace_gc_bit": Field(0, "rb_objspace_t.flags.during_gc"),
}
