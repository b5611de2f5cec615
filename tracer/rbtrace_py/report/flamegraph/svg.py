"""Flame graphs: one self-contained SVG file, interactive in a browser.

The file contains the complete picture. Its script redraws the picture when the user
zooms, searches, flips, or reverses it. The root is at the top; ``flip`` turns that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib.resources import files
from xml.sax.saxutils import escape, quoteattr

from rbtrace_py.aggregate.profile import Profile
from rbtrace_py.aggregate.stacks import StackCounts
from rbtrace_py.report.exchange.rows import Folding, clean, fold
from rbtrace_py.report.flamegraph.colors import (
    GREY,
    change_colour,
    colour,
    legend,
)
from rbtrace_py.report.flamegraph.tree import (
    FlameNode,
    FlameTree,
    difference_of,
    tree_of,
)
from rbtrace_py.report.sample_query import ReportOptions
from rbtrace_py.report.style import PLAIN
from rbtrace_py.report.terminal.weights import amount, idle_text, percent
from rbtrace_py.report.text import cut, width

WIDTH = 1200
_ROW = 17
_PAD = 10
_TOP = 76
_BOTTOM = 50
_LETTER = 7.23
"""Width of a letter of a monospaced 12-pixel font."""
_NARROWEST = 0.4
"""Width in pixels below which a frame is counted but not drawn."""


def flamegraph_pieces(profile: Profile, options: ReportOptions) -> Iterator[str]:
    """Yield the SVG of a profile in pieces."""
    tree = tree_of(fold(profile.counts, options.folding))
    title = options.title or profile.meta.command or "Flame graph"
    yield from _svg(tree, title, profile.unit, profile.counts.statistics.idle)


def difference_pieces(
    before: StackCounts, after: StackCounts, folding: Folding, title: str = ""
) -> Iterator[str]:
    """Yield the SVG of a difference in pieces: red shares grew, blue shares shrank.

    Args:
        before: Earlier stacks.
        after: Later stacks.
        folding: Conversion of stacks to rows.
        title: Title of the graph.
    """
    tree = difference_of(fold(before, folding), fold(after, folding))
    idle = before.statistics.idle + after.statistics.idle
    yield from _svg(tree, title or "Before and after", after.statistics.unit, idle)


def _svg(tree: FlameTree, title: str, unit: str, idle: int = 0) -> Iterator[str]:
    picture = _Picture(tree, unit)
    frames = list(picture.frames())
    height = _TOP + picture.depth * _ROW + _BOTTOM
    rest = f" – {picture.total}"
    if idle:
        rest += f" ({idle_text(idle, unit)})"
    full = f"{clean(title)}{rest}"
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
        f' viewBox="0 0 {WIDTH} {height}" class="flames" role="group"'
        f" aria-label={quoteattr(full)}>\n"
    )
    yield f"<title>{escape(full)}</title>\n"
    yield f"<style>\n{_resource('css')}</style>\n"
    yield f'<rect class="page" width="{WIDTH}" height="{height}" fill="#fff"/>\n'
    yield from _head(clean(title), rest, tree)
    yield '<g class="frames">\n'
    yield from frames
    yield "</g>\n"
    yield _text("details", _PAD, height - 30, "")
    yield _text("narrow muted", _PAD, height - 12, picture.narrow_words)
    yield f'<script type="application/json" class="data">{_data(picture)}</script>\n'
    yield f"<script><![CDATA[\n{_resource('js')}]]></script>\n</svg>\n"


def _head(title: str, rest: str, tree: FlameTree) -> Iterator[str]:
    room = int((WIDTH - 2 * _PAD) / (_LETTER * 1.25)) - len(rest)
    yield _text("title", _PAD, 22, cut(title, room, PLAIN) + rest)
    yield from _controls(can_reverse=len(tree.totals) == 1)
    entries = legend(tree.labels)
    if len(tree.totals) > 1:
        entries = [("grew", change_colour(0, 1)), ("shrank", change_colour(1, 0))]
    x = 410
    for name, fill in entries:
        yield f'<rect x="{x}" y="44" width="11" height="11" fill="{fill}"/>\n'
        yield _text("muted", x + 16, 54, name)
        x += 34 + round(len(name) * _LETTER)
    yield (
        f'<text class="matched" x="{WIDTH - _PAD}" y="54" text-anchor="end"'
        ' aria-live="polite"></text>\n'
    )


def _controls(can_reverse: bool) -> str:
    """Return HTML, as SVG has no buttons. The script shows it."""
    buttons = [
        ("reset", "Reset", "show everything again (Escape)"),
        ("flip", "Flip", "root at the top or at the bottom (f)"),
    ]
    if can_reverse:
        buttons.append(("reverse", "Reverse", "innermost frames first (r)"))
    made = "".join(
        f'<button type="button" class="{name}" title={quoteattr(tip)}>{text}</button>'
        for name, text, tip in buttons
    )
    return (
        f'<foreignObject class="controls-box" x="{_PAD}" y="34" width="540"'
        ' height="32" display="none"><div xmlns="http://www.w3.org/1999/xhtml"'
        ' class="controls"><input type="search" class="search"'
        ' placeholder="search: a regex (/)"'
        f' aria-label="search, a regular expression"/>{made}</div></foreignObject>\n'
    )


def _text(kind: str, x: float, y: float, text: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(text)}</text>\n'


class _Picture:
    """Frames at their positions. Too narrow frames are counted.

    Attributes:
        depth: Number of rows drawn. It and ``narrow`` are known when ``frames`` has
            ended.
    """

    def __init__(self, tree: FlameTree, unit: str) -> None:
        self.tree = tree
        self.unit = unit
        self.depth = 1
        self.narrow = 0
        self._room = WIDTH - 2 * _PAD
        self._colours = [colour(label) for label in tree.labels]

    @property
    def total(self) -> str:
        """Return ``1,234 samples``, or both numbers of a difference."""
        return " → ".join(amount(weight, self.unit) for weight in self.tree.totals)

    @property
    def narrow_words(self) -> str:
        return f"{self.narrow:,} frames are too narrow to be drawn" * bool(self.narrow)

    def frames(self) -> Iterator[str]:
        waiting = [(self.tree.root, 0, 0.0)]
        while waiting:
            node, depth, x = waiting.pop()
            size = self.tree.share(node) * self._room
            if depth and size < _NARROWEST:
                self._count(node)
                continue
            self.depth = max(self.depth, depth + 1)
            yield self._frame(node, depth, x, size if depth else self._room)
            placed = []
            for child in node.children:
                placed.append((child, depth + 1, x))
                x += self.tree.share(child) * self._room
            waiting.extend(reversed(placed))

    def _count(self, node: FlameNode) -> None:
        waiting = [node]
        while waiting:
            one = waiting.pop()
            self.narrow += one.gathered or 1
            waiting.extend(one.children)

    def _frame(self, node: FlameNode, depth: int, x: float, size: float) -> str:
        y = _TOP + depth * _ROW
        about = escape(self._about(node))
        rect = (
            f'<rect x="{_PAD + x:.2f}" y="{y}" width="{size:.2f}"'
            f' height="{_ROW - 1}" fill="{self.colour(node)}"/>'
        )
        text = self._fit(node, size)
        if text:
            text = (
                f'<text x="{_PAD + x + 3:.2f}" y="{y + _ROW - 5}">{escape(text)}</text>'
            )
        return f"<g><title>{about}</title>{rect}{text}</g>\n"

    def colour(self, node: FlameNode) -> str:
        if len(self.tree.totals) > 1:
            return change_colour(*self._shares(node))
        return GREY if node.label < 0 else self._colours[node.label]

    def _shares(self, node: FlameNode) -> list[float]:
        totals = self.tree.totals
        return [w / t if t else 0.0 for w, t in zip(node.weights, totals, strict=True)]

    def _name(self, node: FlameNode, whole: bool) -> str:
        if node.label >= 0:
            label = self.tree.labels[node.label]
            return label.text if whole else label.name
        return f"{node.gathered:,} narrow frames" if node.gathered else "all"

    def _about(self, node: FlameNode) -> str:
        """Return the numbers in the form that the script shows."""
        shares = self._shares(node)
        if len(shares) > 1:
            before, after = shares
            change = 100 * (after - before)
            words = f"{percent(before, 1)} % → {percent(after, 1)} %, "
            words += f"{'−' if change < 0 else '+'}{abs(change):.2f}"
        else:
            words = f"{amount(node.weights[0], self.unit)}, {percent(shares[0], 1)} %"
        return f"{self._name(node, whole=True)} ({words})"

    def _fit(self, node: FlameNode, size: float) -> str:
        """Return the part of the name that fits."""
        most = int((size - 6) / _LETTER)
        if most < 3:
            return ""
        for whole in (True, False):
            if width(text := self._name(node, whole)) <= most:
                return text
        return cut(text, most, PLAIN)


def _data(picture: _Picture) -> str:
    """Return the script's data: every node in preorder, as plain numbers."""
    tree = picture.tree
    columns = len(tree.totals)
    palette: dict[str, int] = {}
    nodes: list[int] = []
    for node, _ in tree.preorder():
        nodes += [node.label, len(node.children), node.gathered, *node.weights]
        if columns > 1:
            nodes.append(palette.setdefault(picture.colour(node), len(palette)))
    labels: Sequence[list[str]] = [[label.name, label.text] for label in tree.labels]
    colours = list(palette) if columns > 1 else [colour(label) for label in tree.labels]
    document = {
        "unit": picture.unit,
        "grey": GREY,
        "layout": {
            "width": WIDTH,
            "row": _ROW,
            "pad": _PAD,
            "top": _TOP,
            "letter": _LETTER,
            "narrowest": _NARROWEST,
            "columns": columns,
        },
        "labels": labels,
        "colours": colours,
        "nodes": nodes,
    }
    # No text may end the element or begin another.
    text = json.dumps(document, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _resource(kind: str) -> str:
    return (files(__package__) / f"flamegraph.{kind}").read_text("utf-8")
