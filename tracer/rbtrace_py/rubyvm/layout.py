"""Differences between Rubies, as data: offsets of fields, and encodings.

The walker contains no version checks. A ``Layout`` contains all that it needs of a
Ruby: offsets in bytes, and traits. An absent field is None, never 0. A layout comes
from the table of its minor version (``layouts/``), DWARF, machine code, or a file
written by ``layout --save``. ``origins`` contains the source of each offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Origin(str, Enum):
    """The source of an offset, the most trusted first."""

    FILE = "file"
    DWARF = "DWARF"
    TABLE = "table"
    MINED = "mined"


@dataclass(frozen=True, slots=True)
class Field:
    """One offset in bytes, and its CRuby member.

    ``member`` is ``structure.member[.member…]`` as in the headers of that version, and
    is also used to find it in DWARF.
    """

    offset: int
    member: str


Differences = Mapping[str, Field | int | None]
"""Differences of a Ruby from the previous version, by names of ``Offsets``: a ``Field``
that is new or is now another member; the new offset of a member; None for a removed
field."""


def changed(before: Mapping[str, Field], differences: Differences) -> dict[str, Field]:
    """Return the fields of ``before`` with these differences."""
    fields = dict(before)
    for name, now in differences.items():
        if now is None:
            del fields[name]
        elif isinstance(now, int):
            fields[name] = Field(now, fields[name].member)
        else:
            fields[name] = now
    return fields


class LineTable(str, Enum):
    """The format of an iseq's line table."""

    POSITION_IN_ENTRY = "position in entry"  # up to 2.5
    POSITIONS_ARRAY = "positions array"  # with VM_INSN_INFO_TABLE_IMPL other than 2
    SUCCINCT = "succinct index"  # 2.6 and later


class ThreadList(str, Enum):
    """The structure in which a VM, or since 3.0 a ractor, keeps its threads."""

    ST_TABLE = "st_table"  # 2.1
    LIST = "list_head"  # 2.2 and later


class ClassPath(str, Enum):
    """The location of a class's name, and of a singleton class's object."""

    IVAR_TABLE = "ivar table"  # up to 3.1
    FIRST_IVAR = "first ivar"  # 3.2
    EXTENSION = "class extension"  # 3.3 and later


class StringStyle(str, Enum):
    """The format of an RString."""

    LENGTH_IN_FLAGS = "length in flags"  # up to 3.1
    LENGTH_FIRST = "length first"  # 3.2 and later


@dataclass(frozen=True, slots=True)
class Traits:
    """Facts about a Ruby other than offsets. Bits are numbered from 0."""

    line_table: LineTable
    thread_list: ThreadList
    class_path: ClassPath
    string_style: StringStyle
    has_ractors: bool
    flags_in_ep: bool
    """Frame type in ``ep[0]`` (2.4 and later), not in the control frame."""
    method_in_ep: bool
    """Method entry or cref in ``ep[-2]`` (``ep[-1]`` up to 2.3)."""
    first_line_is_fixnum: bool
    native_id_is_tid: bool
    """A kernel thread ID (3.1 and later), not a pthread_t."""
    qnil: int
    singleton_bit: int
    frame_magic_mask: int
    frame_magics: Mapping[str, int]
    """``METHOD BLOCK CLASS TOP CFUNC IFUNC EVAL RESCUE DUMMY`` (``PROC``, ``LAMBDA`` if
    a version has them)."""
    local_flag: int | None
    """VM_ENV_FLAG_LOCAL in ``ep[0]``."""
    iseq_imemo: int | None
    ment_imemo: int | None
    svar_imemo: int | None
    symbol_shift: int
    """ID_SCOPE_SHIFT: the shift from an ID to its serial number."""
    last_operator_id: int
    """tLAST_OP_ID: up to this value, an ID is its own serial number."""
    imemo_mask: int = 0xF
    """IMEMO_MASK: the bits that contain an imemo's kind (2.5 and later)."""
    old_tables: bool = False
    """True if an st_table is a hash of linked entries (2.3 and earlier)."""
    promoted: int = 0x60
    """RUBY_FL_PROMOTED (``fl_type.h``): flags of an object that has survived three
    collections, or up to 3.2 one if an older object refers to it."""
    qualified_labels: bool = False
    """True if a label contains the class, and a ``rescue`` or ``ensure`` replaces the
    frame of its method (3.4 and later)."""
    internal_as_c: bool = False
    """True if frames of ``<internal:…>`` have their caller's path and line (4.0)."""
    type_has_flag: bool = False
    """True if a typed object's type comes after its fields. Its lowest bit is set if
    the structure is in the object (4.0 and later)."""
    owner_is_thread: bool = True
    """True if a Mutex refers to the thread that holds it (2.7, 4.0), not the fiber."""
    autoloads_without_mutex: bool = True
    """True if a wait for an autoload sleeps without a Mutex (3.1 and earlier)."""
    symbols_in_data: bool = False
    """True if the arrays in the symbol table are C arrays of typed objects, with a
    symbol before its string (4.1 and later)."""
    data_may_be_embedded: bool = False
    """True if some typed objects contain their C structure (Monitor in 4.1)."""
    has_jit_frames: bool = False
    """True if ZJIT, while on, keeps a frame's pc and iseq in its JITFrame (4.1)."""
    c_traced: tuple[str, ...] = ()
    """Path and name of each method with ``Primitive.attr! :c_trace``, whose frames have
    their caller's path and line (3.4 with YJIT)."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """Offsets in bytes from the beginning of the structure in a name's prefix.

    ec: rb_execution_context_t (up to 2.4 the thread itself), cfp: rb_control_frame_t,
    th: rb_thread_t, nt: rb_native_thread, vm: rb_vm_t, ractor: rb_ractor_t, iseq:
    rb_iseq_t, body: rb_iseq_constant_body (up to 2.2 the iseq itself), line:
    iseq_insn_info_entry, me: rb_method_entry_t, def: rb_method_definition_t, class:
    RClass, ext: rb_classext_t, symbols: the global symbol table, fiber: rb_fiber_t,
    call: rb_call_data, objspace: rb_objspace, mutex: rb_mutex_t, queue: rb_queue and
    rb_szqueue, data: RTypedData, file: RFile, io: rb_io_t, locals: the body again,
    jit_frame: zjit_jit_frame. ``…_size`` without a member is the size of the structure.
    """

    ec_vm_stack: int
    ec_vm_stack_size: int
    """In words."""
    ec_cfp: int
    ec_thread: int | None
    ec_fiber: int | None

    cfp_size: int
    cfp_pc: int
    cfp_sp: int
    cfp_iseq: int
    cfp_self: int
    cfp_ep: int
    cfp_flag: int | None
    """Frame type, up to 2.3."""
    cfp_me: int | None
    """Method entry, up to 2.2."""
    cfp_class: int | None
    cfp_jit_return: int | None
    """Offset of the address at which JIT code continues after the frame (3.1 and
    later). It is 0 in a frame that the interpreter pushed, unless a JIT has taken it
    over."""

    th_ec: int | None
    th_vm: int
    th_self: int | None
    th_name: int | None
    th_status: int
    """The byte whose two low bits are the status, since 2.1; up to 2.4 an int."""
    th_native_id: int | None
    """thread_id, a pthread_t, or since 3.1 a kernel thread ID, in the thread itself."""
    th_native_thread: int | None
    nt_tid: int | None
    th_list_node: int | None
    th_ractor: int | None
    th_root_fiber: int | None

    vm_threads: int | None
    vm_main_thread: int | None
    vm_running_thread: int | None
    vm_ractors: int | None
    vm_main_ractor: int | None
    vm_objspace: int | None

    ractor_threads: int | None
    ractor_running_ec: int | None
    ractor_main_thread: int | None
    ractor_list_node: int | None

    iseq_body: int | None
    body_type: int
    body_size: int
    """iseq_size, in words."""
    body_encoded: int
    body_path: int
    """pathobj, since 2.5; before that path."""
    body_real_path: int | None
    body_base_label: int
    body_label: int
    body_first_line: int
    body_lines: int
    """insns_info.body; insns_info in 2.5, line_info_table before."""
    body_line_positions: int | None
    body_line_count: int
    body_line_index: int | None
    body_parent: int | None
    body_local: int | None

    line_size: int
    line_number: int
    line_position: int | None

    me_flags: int | None
    me_defined_class: int | None
    me_def: int | None
    me_called_id: int | None
    me_owner: int | None
    def_type: int | None
    def_body: int | None
    def_original_id: int | None

    class_super: int | None
    """Offset of the superclass's VALUE, from the class."""
    class_ext: int | None
    """Offset of the pointer to the extension; None if it follows the class."""
    ext_ivars: int | None
    """iv_tbl, up to 3.1, from the extension."""
    class_first_ivar: int | None
    """Offset of the pointer to instance variables, 3.2 to 3.4, from the class."""
    class_fields: int | None
    """Offset of the object with instance variables, 4.0 and later, from the class."""
    fields_first: int | None
    """Offset of the first instance variable in that object."""
    class_path: int | None
    """Offset of the name's VALUE, 3.3 and later, from the class."""
    class_attached: int | None
    """Offset of the attached object's VALUE, 3.3 and later, from the class."""

    symbols_last_id: int
    symbols_ids: int

    fiber_prev: int | None
    fiber_ec: int | None
    fiber_status: int | None

    objspace_flags: int | None
    objspace_gc_bit: int | None
    """Number of the bit ``during_gc`` in the word at ``objspace_flags``."""

    ractor_objspace: int | None = None
    """Offset of the pointer to a ractor's own object space (4.1, from August 2026)."""
    objspace_count: int | None = None
    """Offset of the number of collections begun (2.7, 3.1 and later)."""
    body_last_line: int | None = None
    """Offset of the last line of its source, an int (2.6 and later)."""
    body_call_data: int | None = None
    """Offset of the pointer to the call sites' data (2.7 and later)."""
    call_size: int | None = None
    call_mid: int | None = None
    """Offset of the method's ID in a call site's data (2.7). Later versions begin with
    a ``ci``, which is packed into its word or an object."""
    call_cache: int | None = None
    """Offset of the pointer to a call site's cache (3.0 and later)."""
    call_me: int | None = None
    """Offset of the method entry called last: in the cache, or in 2.7 in the call
    site's data."""

    th_locking_mutex: int | None = None
    """Offset of the Mutex that the thread waits to lock (2.7 and later)."""
    th_scheduler: int | None = None
    """Offset of the fiber scheduler, nil if the thread has none (3.0 and later)."""
    th_gvl_node: int | None = None
    """Offset of the node that links a thread into the GVL's queue."""
    gvl_queue: int | None = None
    """Offset of the head of that queue, in the VM, or since 3.0 in the ractor."""
    gvl_holder: int | None = None
    """Offset of the thread that holds the GVL, in the same structure (since 2.7)."""
    mutex_owner: int | None = None
    """Offset of a Mutex's owner, whose type ``owner_is_thread`` tells; 0: unlocked."""
    mutex_serial: int | None = None
    """Offset of the serial number of the execution context that holds it (4.0)."""
    ec_serial: int | None = None
    """Offset of an execution context's serial number, one per fiber (4.0)."""
    jit_frame_pc: int | None = None
    jit_frame_iseq: int | None = None
    jit_frame_map_size: int | None = None
    """Offset of the number of entries of a JITFrame's stack map, a u32 (4.1)."""
    jit_frame_size: int | None = None
    jit_frame_map: int | None = None
    """Offset of the stack map's first entry (4.1)."""
    queue_items: int | None = None
    """Offset of the Array with a queue's items (up to 4.0)."""
    queue_length: int | None = None
    """Offset of the number of items in a queue (4.1)."""
    queue_waiting: int | None = None
    """Offset of the number of threads that wait to pop from a queue, an int."""
    queue_pushing: int | None = None
    """Offset of the number of threads that wait to push to a SizedQueue, an int."""
    queue_most: int | None = None
    """Offset of a SizedQueue's capacity."""
    data_pointer: int | None = None
    """Offset of the pointer to the C structure of a typed object."""
    file_io: int | None = None
    """Offset of the pointer to an IO's ``rb_io_t``."""
    io_fd: int | None = None
    """Offset of an IO's descriptor, an int."""
    io_pid: int | None = None
    """Offset of the child process at an IO's other end (IO.popen), an int; 0: none."""
    locals_names: int | None = None
    """Offset of the pointer to the IDs of local variables, from the iseq's body."""
    locals_params: int | None = None
    """Offset of the description of an iseq's parameters; its flags come first."""
    locals_block: int | None = None
    """Offset of the index of the block parameter's local variable, an int."""
    locals_count: int | None = None
    """Offset of the number of local variables, an unsigned int."""


@dataclass(frozen=True, slots=True)
class Table:
    """The layout of a minor version, from its file in ``layouts/``."""

    version: tuple[int, int]
    traits: Traits
    fields: Mapping[str, Field]
    """By name of ``Offsets``; absent fields are missing."""
    newest: int
    """The newest patch release that verified it."""
    development: str = ""
    """Date of the development revision that verified it; empty if a release did."""
    later: Table | None = None
    """The table of a later revision of that branch."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The facts about one Ruby that the walker needs."""

    version: str
    """Version of the target, such as ``3.1.2``."""
    traits: Traits
    offsets: Offsets
    origins: Mapping[str, Origin] = field(default_factory=dict)
