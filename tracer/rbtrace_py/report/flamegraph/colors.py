"""Colors of flame graphs: a range for each kind of frame, a hue for each method."""

from __future__ import annotations

import colorsys
import zlib
from collections.abc import Iterable

from rbtrace_py.model.stacks import FrameKind
from rbtrace_py.report.exchange.rows import Label

_FAMILIES: dict[FrameKind | None, tuple[int, int, float]] = {
    FrameKind.RUBY: (8, 50, 0.80),
    FrameKind.C: (190, 225, 0.60),
    FrameKind.NATIVE: (262, 290, 0.50),
    FrameKind.GC: (95, 135, 0.45),
    FrameKind.KERNEL: (308, 338, 0.50),
}
"""Lowest hue and highest hue (degrees), and saturation. Other frames are gray."""

_LEGEND: tuple[tuple[str, FrameKind | None], ...] = (
    ("Ruby", FrameKind.RUBY),
    ("C", FrameKind.C),
    ("native", FrameKind.NATIVE),
    ("kernel", FrameKind.KERNEL),
    ("GC", FrameKind.GC),
    ("wait, state or thread", None),
)

_RARE = (FrameKind.KERNEL,)
"""Kinds that a legend shows only if they occur."""

GREY = "#c8c8c8"


def colour(label: Label) -> str:
    """Return ``#rrggbb``, the same for a method in every graph.

    Black text is readable on it.
    """
    family = _FAMILIES.get(label.kind)
    if family is None:
        return GREY
    low, high, saturation = family
    check = zlib.crc32(label.name.encode("utf-8", "replace"))
    hue = low + (check & 0xFFFF) / 0xFFFF * (high - low)
    lightness = 0.66 + (check >> 16) / 0xFFFF * 0.12
    return _hex(hue, saturation, lightness)


def kind_colour(kind: FrameKind | None) -> str:
    """Return the middle of a kind's color range."""
    if kind not in _FAMILIES:
        return GREY
    low, high, saturation = _FAMILIES[kind]
    return _hex((low + high) / 2, saturation, 0.70)


def legend(labels: Iterable[Label]) -> list[tuple[str, str]]:
    """Return the names of kinds and their colours, for a graph of these labels."""
    seen = {label.kind for label in labels}
    return [
        (name, kind_colour(kind))
        for name, kind in _LEGEND
        if kind in seen or kind not in _RARE
    ]


def change_colour(before: float, after: float) -> str:
    """Return red if a share grew and blue if it shrank.

    The color is strongest from five percentage points on, or if one share is 0.
    """
    change = after - before
    if not change:
        return "#e4e4e4"
    strength = max(min(abs(change) / 0.05, 1.0), 0.08)
    return _hex(4 if change > 0 else 215, 0.85, 0.93 - 0.30 * strength)


def _hex(hue: float, saturation: float, lightness: float) -> str:
    parts = colorsys.hls_to_rgb(hue / 360, lightness, saturation)
    return "#" + "".join(f"{round(part * 255):02x}" for part in parts)
