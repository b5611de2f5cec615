"""Ruby 4.0, x86-64.

Verified: DWARF of 4.0.0 and 4.0.5 as compiled from their releases; they agree. The
fields of a walk also on a running 4.0.5.
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
from rbtrace_py.rubyvm.layouts.frames import IN_EP, IN_EP_MASK

NEWEST = 5
"""The newest patch release that this was verified with."""

TRAITS = Traits(
    line_table=LineTable.SUCCINCT,
    thread_list=ThreadList.LIST,
    class_path=ClassPath.EXTENSION,
    string_style=StringStyle.LENGTH_FIRST,
    has_ractors=True,
    flags_in_ep=True,
    method_in_ep=True,
    first_line_is_fixnum=False,
    native_id_is_tid=True,
    qnil=4,
    singleton_bit=13,
    frame_magic_mask=IN_EP_MASK,
    frame_magics=IN_EP,
    local_flag=0x2,
    iseq_imemo=7,
    ment_imemo=6,
    svar_imemo=2,
    symbol_shift=4,
    last_operator_id=171,
    qualified_labels=True,
    internal_as_c=True,
)

FIELDS: Mapping[str, Field] = {
    # Execution context
    "ec_vm_stack": Field(0, "rb_execution_context_t.vm_stack"),
    "ec_vm_stack_size": Field(8, "rb_execution_context_t.vm_stack_size"),
    "ec_cfp": Field(16, "rb_execution_context_t.cfp"),
    "ec_thread": Field(48, "rb_execution_context_t.thread_ptr"),
    "ec_fiber": Field(40, "rb_execution_context_t.fiber_ptr"),
    # Control frame
    "cfp_size": Field(56, "sizeof rb_control_frame_t"),
    "cfp_pc": Field(0, "rb_control_frame_t.pc"),
    "cfp_sp": Field(8, "rb_control_frame_t.sp"),
    "cfp_iseq": Field(16, "rb_control_frame_t.iseq"),
    "cfp_self": Field(24, "rb_control_frame_t.self"),
    "cfp_ep": Field(32, "rb_control_frame_t.ep"),
    "cfp_jit_return": Field(48, "rb_control_frame_t.jit_return"),
    # Thread
    "th_ec": Field(48, "rb_thread_t.ec"),
    "th_vm": Field(32, "rb_thread_t.vm"),
    "th_self": Field(16, "rb_thread_t.self"),
    "th_name": Field(448, "rb_thread_t.name"),
    "th_status": Field(248, "rb_thread_t.status"),
    "th_native_thread": Field(40, "rb_thread_t.nt"),
    "th_list_node": Field(0, "rb_thread_t.lt_node"),
    "th_ractor": Field(24, "rb_thread_t.ractor"),
    "th_root_fiber": Field(424, "rb_thread_t.root_fiber"),
    "nt_tid": Field(24, "rb_native_thread.tid"),
    # VM
    "vm_main_thread": Field(40, "rb_vm_t.ractor.main_thread"),
    "vm_ractors": Field(8, "rb_vm_t.ractor.set"),
    "vm_main_ractor": Field(32, "rb_vm_t.ractor.main_ractor"),
    "vm_objspace": Field(1248, "rb_vm_t.gc.objspace"),
    # Ractor
    "ractor_threads": Field(184, "rb_ractor_t.threads.set"),
    "ractor_running_ec": Field(312, "rb_ractor_t.threads.running_ec"),
    "ractor_main_thread": Field(320, "rb_ractor_t.threads.main"),
    "ractor_list_node": Field(360, "rb_ractor_t.vmlr_node"),
    # Instruction sequence
    "iseq_body": Field(16, "rb_iseq_t.body"),
    "body_type": Field(0, "rb_iseq_constant_body.type"),
    "body_size": Field(4, "rb_iseq_constant_body.iseq_size"),
    "body_encoded": Field(8, "rb_iseq_constant_body.iseq_encoded"),
    "body_path": Field(64, "rb_iseq_constant_body.location.pathobj"),
    "body_base_label": Field(72, "rb_iseq_constant_body.location.base_label"),
    "body_label": Field(80, "rb_iseq_constant_body.location.label"),
    "body_first_line": Field(88, "rb_iseq_constant_body.location.first_lineno"),
    "body_last_line": Field(
        104, "rb_iseq_constant_body.location.code_location.end_pos.lineno"
    ),
    "body_lines": Field(112, "rb_iseq_constant_body.insns_info.body"),
    "body_line_positions": Field(120, "rb_iseq_constant_body.insns_info.positions"),
    "body_line_count": Field(128, "rb_iseq_constant_body.insns_info.size"),
    "body_line_index": Field(136, "rb_iseq_constant_body.insns_info.succ_index_table"),
    "body_parent": Field(168, "rb_iseq_constant_body.parent_iseq"),
    "body_local": Field(176, "rb_iseq_constant_body.local_iseq"),
    "body_call_data": Field(192, "rb_iseq_constant_body.call_data"),
    "call_size": Field(16, "sizeof rb_call_data"),
    # Line table
    "line_size": Field(12, "sizeof iseq_insn_info_entry"),
    "line_number": Field(0, "iseq_insn_info_entry.line_no"),
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
    "class_super": Field(32, "RClass_and_rb_classext_t.classext.super"),
    "class_path": Field(152, "RClass_and_rb_classext_t.classext.classpath"),
    "class_attached": Field(
        136, "RClass_and_rb_classext_t.classext.as.singleton_class.attached_object"
    ),
    # Global symbols
    "symbols_last_id": Field(0, "rb_symbols_t.next_id"),
    "symbols_ids": Field(16, "rb_symbols_t.ids"),
    # Fiber
    "fiber_prev": Field(536, "rb_fiber_t.prev"),
    "fiber_ec": Field(80, "rb_fiber_t.cont.saved_ec"),
    "fiber_status": Field(552, "rb_fiber_t.status"),
    # Collector
    "objspace_flags": Field(28, "rb_objspace_t.flags"),
    "objspace_gc_bit": Field(5, "rb_objspace_t.flags.during_gc"),
}

CHANGES: Mapping[int, Mapping[str, Field]] = {
    # Unverified, by the source alone: ``rb_vm_t.master_box`` comes before the rest of
    # the VM, two pointers more in ``struct rb_thread_sched`` before ``running_ec``.
    6: {
        "vm_objspace": Field(1256, "rb_vm_t.gc.objspace"),
        "ractor_running_ec": Field(328, "rb_ractor_t.threads.running_ec"),
        "ractor_main_thread": Field(336, "rb_ractor_t.threads.main"),
        "ractor_list_node": Field(376, "rb_ractor_t.vmlr_node"),
    },
}
"""By the patch release from which on they hold."""
