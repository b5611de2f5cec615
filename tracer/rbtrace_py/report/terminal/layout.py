"""Description of a Ruby: a few lines, and a table of its offsets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rbtrace_py.model.vm_layout import Offset, VmDescription
from rbtrace_py.report.style import Style
from rbtrace_py.report.text import cut, escape, pad, wrap

_LABELS = 10
_MARGIN = "  "


def layout_lines(described: VmDescription, style: Style) -> Iterator[str]:
    """Yield the lines of a layout."""
    yield style.bold(f"Ruby {described.ruby_version}") + style.dim(
        f"  by {described.version_origin}"
    )
    yield from _facts(described, style)
    yield ""
    yield from _table(described.offsets, style)
    for note in described.notes:
        for number, line in enumerate(wrap(escape(note, style), style.width - 4)):
            yield ("! " if not number else "  ") + line


def _facts(described: VmDescription, style: Style) -> Iterator[str]:
    facts = [
        ("file", escape(described.file, style)),
        ("build-id", described.build_id or "none"),
        ("base", f"{described.base:#x}"),
        ("VM", f"{described.vm:#x}  by {described.vm_origin}"),
        ("symbols", _symbols(described)),
        ("offsets", _summary(described.offsets)),
    ]
    for label, text in facts:
        yield style.dim(pad(label, _LABELS)) + cut(text, style.width - _LABELS, style)


def _symbols(described: VmDescription) -> str:
    if described.symbols is None:
        return "not found"
    return f"{described.symbols:#x}  by {described.symbols_origin}"


def _summary(offsets: Sequence[Offset]) -> str:
    """Return ``72 from the table, 2 mined; its own code confirms 22``."""
    counts = Counter(offset.origin for offset in offsets)
    parts = [f"{count} {origin}" for origin, count in counts.most_common()]
    confirmed = sum(offset.is_confirmed for offset in offsets)
    return f"{', '.join(parts)}; {confirmed} confirmed by the binary's code"


def _table(offsets: Sequence[Offset], style: Style) -> Iterator[str]:
    names = max((len(offset.name) for offset in offsets), default=0)
    origins = max((len(offset.origin) for offset in offsets), default=0)
    mark = style.pick("✓", "*")
    heading = f"{_MARGIN}{pad('field', names)}  offset  {pad('from', origins + 2)}  "
    yield style.dim(f"{heading}member")
    room = style.width - len(heading)
    for offset in offsets:
        origin = pad(offset.origin, origins) + (
            f" {mark}" if offset.is_confirmed else "  "
        )
        member = cut(escape(offset.member, style), room, style)
        line = f"{_MARGIN}{pad(offset.name, names)}  {offset.offset:>6}  {origin}  "
        yield (line + style.dim(member)).rstrip()
    yield style.dim(f"{_MARGIN}{mark} the binary's own code uses this offset")
