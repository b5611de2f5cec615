"""Ruby 2.5, x86-64.

Verified: DWARF of 2.5.0, 2.5.1 and 2.5.9 as compiled from their releases. They differ
from 2.5.4 on in what follows ``rb_vm_t.fork_gen``, which is new there.
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
from rbtrace_py.rubyvm.layouts.frames import IN_EP_2_5, IN_EP_2_5_MASK

NEWEST = 9
"""The newest patch release that this was verified with."""

TRAITS = Traits(
    line_table=LineTable.POSITION_IN_ENTRY,
    thread_list=ThreadList.LIST,
    class_path=ClassPath.IVAR_TABLE,
    string_style=StringStyle.LENGTH_IN_FLAGS,
    has_ractors=False,
    flags_in_ep=True,
    method_in_ep=True,
    first_line_is_fixnum=True,
    native_id_is_tid=False,
    qnil=8,
    singleton_bit=12,
    frame_magic_mask=IN_EP_2_5_MASK,
    frame_magics=IN_EP_2_5,
    local_flag=0x2,
    iseq_imemo=7,
    ment_imemo=6,
    svar_imemo=2,
    symbol_shift=4,
    last_operator_id=166,
)

FIELDS: Mapping[str, Field] = {
    # Execution context
    "ec_vm_stack": Field(0, "rb_execution_context_t.vm_stack"),
    "ec_vm_stack_size": Field(8, "rb_execution_context_t.vm_stack_size"),
    "ec_cfp": Field(16, "rb_execution_context_t.cfp"),
    "ec_thread": Field(72, "rb_execution_context_t.thread_ptr"),
    "ec_fiber": Field(64, "rb_execution_context_t.fiber_ptr"),
    # Control frame
    "cfp_size": Field(48, "sizeof rb_control_frame_t"),
    "cfp_pc": Field(0, "rb_control_frame_t.pc"),
    "cfp_sp": Field(8, "rb_control_frame_t.sp"),
    "cfp_iseq": Field(16, "rb_control_frame_t.iseq"),
    "cfp_self": Field(24, "rb_control_frame_t.self"),
    "cfp_ep": Field(32, "rb_control_frame_t.ep"),
    # Thread
    "th_ec": Field(32, "rb_thread_t.ec"),
    "th_vm": Field(24, "rb_thread_t.vm"),
    "th_self": Field(16, "rb_thread_t.self"),
    "th_name": Field(560, "rb_thread_t.name"),
    "th_status": Field(80, "rb_thread_t.status"),
    "th_native_id": Field(72, "rb_thread_t.thread_id"),
    "th_list_node": Field(0, "rb_thread_t.vmlt_node"),
    "th_root_fiber": Field(328, "rb_thread_t.root_fiber"),
    # VM
    "vm_threads": Field(312, "rb_vm_t.living_threads"),
    "vm_main_thread": Field(280, "rb_vm_t.main_thread"),
    "vm_running_thread": Field(288, "rb_vm_t.running_thread"),
    "vm_objspace": Field(1168, "rb_vm_t.objspace"),
    # Instruction sequence
    "iseq_body": Field(16, "rb_iseq_t.body"),
    "body_type": Field(0, "rb_iseq_constant_body.type"),
    "body_size": Field(4, "rb_iseq_constant_body.iseq_size"),
    "body_encoded": Field(8, "rb_iseq_constant_body.iseq_encoded"),
    "body_path": Field(64, "rb_iseq_constant_body.location.pathobj"),
    "body_base_label": Field(72, "rb_iseq_constant_body.location.base_label"),
    "body_label": Field(80, "rb_iseq_constant_body.location.label"),
    "body_first_line": Field(88, "rb_iseq_constant_body.location.first_lineno"),
    "body_lines": Field(112, "rb_iseq_constant_body.insns_info"),
    "body_line_count": Field(200, "rb_iseq_constant_body.insns_info_size"),
    "body_parent": Field(136, "rb_iseq_constant_body.parent_iseq"),
    "body_local": Field(144, "rb_iseq_constant_body.local_iseq"),
    # Line table
    "line_size": Field(12, "sizeof iseq_insn_info_entry"),
    "line_number": Field(4, "iseq_insn_info_entry.line_no"),
    "line_position": Field(0, "iseq_insn_info_entry.position"),
    # Method entry and definition
    "me_flags": Field(0, "rb_callable_method_entry_t.flags"),
    "me_defined_class": Field(8, "rb_callable_method_entry_t.defined_class"),
    "me_def": Field(16, "rb_callable_method_entry_t.def"),
    "me_called_id": Field(24, "rb_callable_method_entry_t.called_id"),
    "me_owner": Field(32, "rb_callable_method_entry_t.owner"),
    "def_type": Field(0, "rb_method_definition_t.type"),
    "def_body": Field(8, "rb_method_definition_t.body"),
    "def_original_id": Field(32, "rb_method_definition_t.original_id"),
    # Class
    "class_super": Field(16, "RClass.super"),
    "class_ext": Field(24, "RClass.ptr"),
    "ext_ivars": Field(8, "rb_classext_t.iv_tbl"),
    # Global symbols
    "symbols_last_id": Field(0, "symbols.last_id"),
    "symbols_ids": Field(16, "symbols.ids"),
    # Fiber
    "fiber_prev": Field(688, "rb_fiber_t.prev"),
    "fiber_ec": Field(72, "rb_fiber_t.cont.saved_ec"),
    "fiber_status": Field(696, "rb_fiber_t.status"),
    # Collector
    "objspace_flags": Field(16, "rb_objspace_t.flags"),
    "objspace_gc_bit": Field(5, "rb_objspace_t.flags.during_gc"),
}

CHANGES: Mapping[int, Mapping[str, Field]] = {
    # ``rb_vm_t.fork_gen`` came before.
    4: {
        "vm_threads": Field(320, "rb_vm_t.living_threads"),
        "vm_objspace": Field(1176, "rb_vm_t.objspace"),
    },
}
"""By the patch release from which on they hold."""
