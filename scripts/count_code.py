#!/usr/bin/env python3
"""Count lines of Python code, without blank lines, comments, and docstrings.

scripts/count_code.py [DIR]      count this checkout, or the one in DIR

Also lists files by folder, the longest functions, and duplicate public class names.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("tracer/rbtrace_py")
PLACES = (PACKAGE, Path("tests"), Path("scripts"))
_LONGEST = 10
_NO_CODE = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Function(NamedTuple):
    """A function's lines of code without decorators, and its location."""

    lines: int
    place: str
    name: str


class Source:
    """A file; ``code`` contains the numbers of the lines with code."""

    def __init__(self, path: Path) -> None:
        text = path.read_text()
        self.path = path
        self.tree = ast.parse(text)
        self.code: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type not in _NO_CODE:
                self.code.update(range(token.start[0], token.end[0] + 1))
        for node in ast.walk(self.tree):
            if _is_docstring(node):
                self.code.difference_update(_lines(node))

    def functions(self, root: Path) -> Iterator[Function]:
        for node in ast.walk(self.tree):
            if isinstance(node, _FUNCTIONS):
                place = f"{self.path.relative_to(root)}:{node.lineno}"
                lines = len(self.code.intersection(_lines(node)))
                yield Function(lines, place, node.name)

    def public_classes(self) -> Iterator[str]:
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name


def _is_docstring(node: ast.AST) -> bool:
    """Return whether it is a bare string, including docstrings of attributes."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _lines(node: ast.AST) -> range:
    assert isinstance(node, ast.stmt)
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _sources(root: Path, place: Path) -> list[Source]:
    paths = sorted((root / place).rglob("*.py"))
    return [Source(path) for path in paths if "__pycache__" not in path.parts]


def _by_package(root: Path, sources: list[Source]) -> Iterator[tuple[str, int, int]]:
    """Yield name, files, and lines per package, and of the top-level modules."""
    files: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for source in sources:
        parts = source.path.relative_to(root / PACKAGE).parts
        name = f"{parts[0]}/" if len(parts) > 1 else "(modules)"
        files[name] += 1
        lines[name] += len(source.code)
    for name in sorted(files):
        yield name, files[name], lines[name]


def report(root: Path) -> Iterator[str]:
    """Yield the figures, one per line."""
    ours, *others = (_sources(root, place) for place in PLACES)
    yield f"{'package':<16}{'files':>6}{'lines':>8}"
    for name, files, lines in _by_package(root, ours):
        yield f"{name:<16}{files:>6}{lines:>8,}"
    for place, sources in zip(PLACES, (ours, *others), strict=True):
        lines = sum(len(source.code) for source in sources)
        yield f"{place!s:<16}{len(sources):>6}{lines:>8,}"
    yield ""
    yield "files by folder"
    folders = Counter(source.path.parent.relative_to(root) for source in ours)
    for folder, count in folders.most_common():
        yield f"{count:>6}  {folder}"
    yield ""
    functions = [each for source in ours for each in source.functions(root)]
    middle = median(each.lines for each in functions)
    yield f"longest of {len(functions):,} functions (median {middle:g} lines)"
    for lines, place, name in sorted(functions, reverse=True)[:_LONGEST]:
        yield f"{lines:>6}  {name}  {place}"
    yield ""
    yield "public class names that stand twice"
    places: defaultdict[str, list[str]] = defaultdict(list)
    for source in ours:
        for name in source.public_classes():
            places[name].append(str(source.path.relative_to(root / PACKAGE)))
    twice = {name: found for name, found in sorted(places.items()) if len(found) > 1}
    for name, found in twice.items():
        yield f"        {name}: {', '.join(found)}"
    yield f"{len(twice):>6}  in all"


if __name__ == "__main__":
    print("\n".join(report(Path(sys.argv[1]).resolve() if sys.argv[1:] else ROOT)))
