"""Qualified names of classes, method entries, and frames.

They follow Ruby 3.4 (gen_method_name of vm_backtrace.c): ``Class#method`` and
``Class.method``. Ruby omits a class without a permanent name; we show
``#<Class:0x…>#method``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rbtrace_py.errors import UnreadableMemory
from rbtrace_py.linux.memory import gathered
from rbtrace_py.rubyvm.consistency import Topic
from rbtrace_py.rubyvm.iseqs import Iseq, IseqKind, Iseqs
from rbtrace_py.rubyvm.layout import ClassPath
from rbtrace_py.rubyvm.values import LONGEST_NAME, T_CLASS, T_MODULE, Values

_CACHED = 1 << 15
_CLASS_PATHS = ("__classpath__", "__tmp_classpath__")
_CLASS_ID = "__classid__"
"""Up to 2.6: the constant's name as a Symbol, of a class whose path was never requested
(``rb_name_class`` of variable.c)."""
_STATIC_SYMBOL = 0x0C
"""RUBY_SYMBOL_FLAG; the ID is above the lowest 8 bits."""
_ATTACHED = "__attached__"
_REFINED, _DEFINED_AT = "__refined_class__", "__defined_at__"
_MOST_NESTED = 8
_MOST_REFINED = 2
"""Maximum nesting of refinements in a name; each contains two names."""
_MOST_IVARS = 1 << 12
"""Maximum instance variables of a class, up to 3.1; real classes have fewer."""
_TEXT_CACHED = 1 << 24
"""Maximum characters of the names of all methods."""

_FLAGS = 8
"""Bytes of an object's flags, which come first."""

_BY_ISEQ, _BY_C, _NOT_IMPLEMENTED = 0, 1, 8
"""VM_METHOD_TYPE_ISEQ, CFUNC, and NOTIMPLEMENTED, of the four bits of ``def.type``
(method.h)."""

_BLOCKS = {0: "", 1: "block in "}


@dataclass(frozen=True, slots=True)
class Method:
    """A method entry: its owner and its name.

    Attributes:
        iseq: Address of its code; 0 if this is not an iseq.
        kind: Type of its definition, or None if unknown.
        called: ID by which it is called (an alias's).
        prefix: ``Class#`` or ``Class.``.
        is_named: True if the class has a permanent name.
        raw: Bytes of the entry, which show whether it was replaced.
    """

    iseq: int
    kind: int | None
    called: int
    prefix: str
    name: str
    is_named: bool
    raw: bytes

    @property
    def is_c(self) -> bool:
        """True if it is known to be a C function."""
        return self.kind in (_BY_C, _NOT_IMPLEMENTED)


class Names:
    """Names of method entries and frames, with a bounded cache.

    Attributes:
        fresh: Addresses of newly read entries of C functions, if requested.
        replaced: Number of cached entries that were dropped because others were found
            at their addresses.
    """

    def __init__(self, values: Values, iseqs: Iseqs) -> None:
        self._values = values
        self._iseqs = iseqs
        self._methods: dict[int, Method] = {}
        self.fresh: set[int] | None = None
        offsets = values.offsets
        ends = (offsets.me_def, offsets.me_called_id, offsets.me_owner)
        # Up to 2.2 a method entry is not an object, and has no flags to identify it.
        self._start = _FLAGS if values.traits.ment_imemo is None else 0
        self._size = max(end or 0 for end in ends) + 8 - self._start
        self._text = self.replaced = 0
        self._shows_owner = values.traits.qualified_labels

    def method(self, address: int) -> Method | None:
        """Return the method entry at ``address``, or None."""
        known = self._methods.get(address)
        if known is not None:
            return known
        found = self._load(address)
        if found is not None:
            self._text += len(found.prefix) + len(found.name)
            if len(self._methods) >= _CACHED or self._text > _TEXT_CACHED:
                self._methods.clear()
                self._text = 0
            self._methods[address] = found
            if found.is_c and self.fresh is not None:
                self.fresh.add(address)
        return found

    def revalidate(self) -> bool:
        """Read method entries again; return whether one was replaced."""
        gone = self._replaced(list(self._methods))
        for address in gone:
            del self._methods[address]
        return bool(gone)

    def are_unchanged(self, functions: Iterable[int], methods: Iterable[int]) -> bool:
        """Return whether the known ones of these method entries are unchanged.

        Args:
            functions: Entries of C functions.
            methods: Entries of unchanged Ruby code. Such an entry can only belong to
                another owner, which is checked if the name contains an object's
                address.
        """
        known = self._methods
        some = [address for address in functions if address in known]
        some += [one for one in methods if one in known and not known[one].is_named]
        return not self._replaced(some)

    def _replaced(self, addresses: Sequence[int]) -> list[int]:
        """Return the known addresses at which something else is now.

        Flags are not compared: a free entry has the pointer of the free list after
        them.
        """
        known, size = self._methods, self._start + self._size - _FLAGS
        places = [(address + _FLAGS, size) for address in addresses]
        found = gathered(self._values.memory, places)
        return [
            address
            for address, raw in zip(addresses, found, strict=True)
            if raw != known[address].raw
            or not (known[address].is_named or self._is_still(address, known[address]))
        ]

    def renew(self, address: int) -> bool:
        """Drop the cached method entry if something else is at its address now.

        Returns:
            True if the cached entry was dropped.
        """
        method = self._methods.get(address)
        if method is None or self._is_still(address, method):
            return False
        del self._methods[address]
        self.replaced += 1
        return True

    def _is_still(self, address: int, method: Method) -> bool:
        """Return whether the entry is still the same method.

        All objects that a method entry refers to may have been freed with it, and
        created again at the same addresses for the next object's method. The owner's
        name is therefore read again if it is not a constant's name.
        """
        raw = self._read(address)
        if raw != method.raw or not method.prefix.startswith("#<"):
            return raw == method.raw
        try:
            return self._owner(bytes(8) + raw)[0] == method.prefix
        except UnreadableMemory:
            return False

    def iseq_frame(self, iseq: Iseq, method: Method | None) -> tuple[str, str]:
        """Return the qualified name and the label of a Ruby frame."""
        if self._shows_owner:
            return self._shown_frame(iseq, method)
        is_method = self._iseqs.local_kind(iseq) == IseqKind.METHOD
        if method is None or not is_method:
            return iseq.label, iseq.label
        return _with_prefix(iseq, method.prefix), iseq.label

    def _shown_frame(self, iseq: Iseq, method: Method | None) -> tuple[str, str]:
        """Return a frame's name as in 3.4: blocks, then the method with its class."""
        shown, level = self._iseqs.shown_for(iseq)
        blocks = _BLOCKS.get(level, f"block ({level} levels) in ")
        if method is None or shown.kind != IseqKind.METHOD:
            return blocks + shown.label, blocks + shown.label
        name = blocks + method.prefix + shown.label
        return name, name if method.is_named else blocks + shown.label

    def c_frame(self, method: Method) -> tuple[str, str]:
        """Return the qualified name and the label of a C function's frame."""
        name = method.prefix + method.name
        is_shown = self._shows_owner and method.is_named
        return name, name if is_shown else method.name

    def _read(self, address: int) -> bytes:
        """Return the used fields of the entry; b"" if it is not a method entry."""
        if not self._values.is_object(address):
            return b""
        try:
            data = self._values.memory.read(address + self._start, self._size)
        except UnreadableMemory:
            return b""
        kind = self._values.traits.ment_imemo
        if kind is None:
            return data
        flags = int.from_bytes(data[:_FLAGS], "little")
        return data[_FLAGS:] if self._values.imemo_kind_of(flags) == kind else b""

    def _load(self, address: int) -> Method | None:
        raw = self._read(address)
        if not raw:
            return None
        data = bytes(8) + raw
        try:
            definition = _field(data, self._values.offsets.me_def)
            number = self._original_id(definition)
            if number is None:
                number = _field(data, self._values.offsets.me_called_id)
            name = self._values.id_name(number)
            called = _field(data, self._values.offsets.me_called_id)
            prefix, is_named = self._owner(data)
        except UnreadableMemory:
            return None
        kind = self._kind(definition)
        iseq = self._iseq(definition) if kind == _BY_ISEQ else 0
        if iseq and name and not self._is_its_name(iseq, name):
            return None
        return Method(iseq, kind, called, prefix, name or "?", is_named, raw)

    def _is_its_name(self, address: int, name: str) -> bool:
        """Return whether the method's code has the name of its definition."""
        self._iseqs.renew(address)  # it lives as long as the method
        iseq = self._iseqs.get(address)
        is_it = iseq is None or iseq.base_label == name
        self._values.consistency.add(Topic.NAMES, is_it)
        return is_it

    def _original_id(self, definition: int) -> int | None:
        offset = self._values.offsets.def_original_id
        if offset is None or definition < 4096:
            return None
        return self._values.u64(definition + offset)

    def _kind(self, definition: int) -> int | None:
        """Return ``def.type``, or None if the layout lacks it."""
        offset = self._values.offsets.def_type
        if offset is None or definition < 4096:
            return None
        return self._values.memory.read(definition + offset, 1)[0] & 0xF

    def _iseq(self, definition: int) -> int:
        offset = self._values.offsets.def_body
        return 0 if offset is None else self._values.u64(definition + offset)

    def _owner(self, entry: bytes) -> tuple[str, bool]:
        offsets = self._values.offsets
        for offset in (offsets.me_owner, offsets.me_defined_class):
            if offset is not None:
                klass = _field(entry, offset)
                return self.class_prefix(klass) if klass else ("", False)
        return "", False

    def class_prefix(self, klass: int) -> tuple[str, bool]:
        """Return the prefix of a method's name, and whether Ruby shows it."""
        values = self._values
        flags = values.u64(klass) if values.is_object(klass) else 0
        kind = flags & 0x1F
        if kind not in (T_CLASS, T_MODULE):
            return "", False
        if kind == T_CLASS and flags >> values.traits.singleton_bit & 1:
            return self._singleton_prefix(klass)
        name, is_own = self.class_name(klass)
        return f"{name}#", is_own

    def _singleton_prefix(self, klass: int) -> tuple[str, bool]:
        attached = self._attached(klass)
        if attached is None:
            return f"#<Class:0x{klass:016x}>#", False
        if self._values.type_of(attached) in (T_CLASS, T_MODULE):
            name, is_own = self.class_name(attached)
            return f"{name}.", is_own
        return f"{self._object_name(attached, 0)}.", False

    def _object_name(self, value: int, depth: int) -> str:
        """Format ``#<Order:0x…>``, like Object#to_s."""
        return f"#<{self.class_of(value, depth + 1)}:0x{value:016x}>"

    def class_of(self, value: int, depth: int = 0) -> str:
        """Return the name of an object's class, skipping singleton classes.

        "?" for an object that Ruby has hidden, which has no class.
        """
        klass = self._values.u64(value + 8)
        if not klass:
            return "?"
        for _ in range(_MOST_NESTED):
            flags = self._values.u64(klass)
            if not flags >> self._values.traits.singleton_bit & 1:
                break
            klass = self._values.u64(klass + (self._values.offsets.class_super or 16))
        return self.class_name(klass, depth)[0]

    def class_name(self, klass: int, depth: int = 0) -> tuple[str, bool]:
        """Return a class's or module's name, and whether the name is permanent."""
        values = self._values
        kind = values.type_of(klass)
        if kind not in (T_CLASS, T_MODULE):
            return "?", False
        path = self._class_path(klass)
        if path:
            return path, not path.startswith("#<")
        if depth < _MOST_NESTED and kind == T_CLASS:
            flags = values.u64(klass)
            if flags >> values.traits.singleton_bit & 1:
                return self._singleton_name(klass, depth), False
        if kind == T_MODULE:
            refinement = self._refinement(klass, depth)
            if refinement:
                return refinement, False
        word = "Class" if kind == T_CLASS else "Module"
        return f"#<{word}:0x{klass:016x}>", False

    def _singleton_name(self, klass: int, depth: int) -> str:
        attached = self._attached(klass)
        if attached is None:
            return f"#<Class:0x{klass:016x}>"
        if self._values.type_of(attached) in (T_CLASS, T_MODULE):
            return f"#<Class:{self.class_name(attached, depth + 1)[0]}>"
        return f"#<Class:{self._object_name(attached, depth)}>"

    def _refinement(self, module: int, depth: int) -> str | None:
        """Format ``#<refinement:String@Shouting>``, if its two variables are found."""
        if depth > _MOST_REFINED:
            return None
        found = self._ivars(module, (_REFINED, _DEFINED_AT))
        if len(found) != 2:
            return None
        refined, place = (
            self.class_name(found[name], depth + 1)[0]
            for name in (_REFINED, _DEFINED_AT)
        )
        return f"#<refinement:{refined}@{place}>"

    def _class_path(self, klass: int) -> str | None:
        style, offsets = self._values.traits.class_path, self._values.offsets
        if style is ClassPath.EXTENSION and offsets.class_path is not None:
            value = self._values.u64(klass + offsets.class_path)
        elif style is ClassPath.FIRST_IVAR:
            value = self._first_ivar(klass)
        else:
            found = self._ivars(klass, (*_CLASS_PATHS, _CLASS_ID))
            value = next((found[name] for name in _CLASS_PATHS if name in found), 0)
            symbol = found.get(_CLASS_ID, 0)
            if not value and symbol & 0xFF == _STATIC_SYMBOL:
                return self._values.id_name(symbol >> 8)
        return self._values.string(value, LONGEST_NAME)

    def _attached(self, klass: int) -> int | None:
        style, offsets = self._values.traits.class_path, self._values.offsets
        if style is ClassPath.EXTENSION and offsets.class_attached is not None:
            value = self._values.u64(klass + offsets.class_attached)
        elif style is ClassPath.FIRST_IVAR:
            value = self._first_ivar(klass)
        else:
            value = self._ivars(klass, (_ATTACHED,)).get(_ATTACHED, 0)
        return value if self._values.is_object(value) else None

    def _first_ivar(self, klass: int) -> int:
        place = self._ivars_place(klass)
        return self._values.u64(place) if place else 0

    def _ivars_place(self, klass: int) -> int:
        """Return the address of a class's instance variables (3.2 and later), or 0.

        Up to 3.4 the class has a pointer to them. In Ruby 4.0 they are in a separate
        object while they fit into it, about 70 of them.
        """
        values, offsets = self._values, self._values.offsets
        if offsets.class_first_ivar is not None:
            return values.u64(klass + offsets.class_first_ivar)
        if offsets.class_fields is None or offsets.fields_first is None:
            return 0
        fields = values.u64(klass + offsets.class_fields)
        return fields + offsets.fields_first if fields else 0

    def _ivars(self, klass: int, names: tuple[str, ...]) -> dict[str, int]:
        """Return a class's instance variables with these names.

        They are in its iv_tbl up to 3.1. Later versions use an array whose order the
        shape defines. Only a refinement's first two are known then.
        """
        values, offsets = self._values, self._values.offsets
        if values.traits.class_path is not ClassPath.IVAR_TABLE:
            return self._refinement_ivars(klass) if _REFINED in names else {}
        if offsets.ext_ivars is None:
            return {}
        extension = klass
        if offsets.class_ext is not None:
            extension = values.u64(klass + offsets.class_ext)
        table = values.u64(extension + offsets.ext_ivars) if extension else 0
        if not table:
            return {}
        rows = (
            (values.id_name(key), value)
            for key, value in values.st_table(table, _MOST_IVARS)
        )
        return {name: value for name, value in rows if name in names}

    def _refinement_ivars(self, module: int) -> dict[str, int]:
        """Return the variables of a refinement; {} if they cannot be read.

        Without them, its name contains an address, and the frame is still valid.
        rb_refinement_new sets them in this order (eval.c, 3.2 and later).
        """
        try:
            place = self._ivars_place(module)
            if not place:
                return {}
            data = self._values.memory.read(place, 16)
        except UnreadableMemory:
            return {}
        refined, defined_at = struct.unpack("=2Q", data)
        classes = (T_CLASS, T_MODULE)
        for value in (refined, defined_at):
            if self._values.type_of(value) not in classes:
                return {}
        return {_REFINED: refined, _DEFINED_AT: defined_at}


def _field(data: bytes, offset: int | None) -> int:
    if offset is None:
        return 0
    value: int = struct.unpack_from("=Q", data, offset)[0]
    return value


def _with_prefix(iseq: Iseq, prefix: str) -> str:
    """Insert the prefix before the method's own name: ``block in Order#total``."""
    base = iseq.base_label
    if base and iseq.label.endswith(base):
        return iseq.label[: len(iseq.label) - len(base)] + prefix + base
    return prefix + iseq.label
