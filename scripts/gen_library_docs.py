#!/usr/bin/env python3
"""Make docs/library-reference.md from the docstrings of the library.

scripts/gen_library_docs.py              write the page
scripts/gen_library_docs.py --check      exit code 1 if the page is out of date
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints, is_typeddict

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "library-reference.md"
WIDTH = 88

sys.path.insert(0, str(ROOT / "tracer"))

import rbtrace_py  # noqa: E402
from rbtrace_py.library import measuring  # noqa: E402

HEAD = """\
# Library reference

Functions and classes of [the library](library.md). `scripts/gen_library_docs.py` makes
this page from their docstrings; a test compares the two. Results are described in
[Results](library.md#results), samples in [Sampling stacks](library.md#sampling-stacks).
"""
ORDER = (
    *("latency", "count", "values", "methods", "Measurement"),
    *("trace", "calls", "EventStream", "MethodCall"),
    *("eval", "Evaluation", "RubyError", "backtraces", "memory", "probes"),
    *("attach_agent", "detach_agent"),
    *("attach", "Sampler", "count_samples", "read_recording", "read_calls"),
    *("fold", "render", "formats", "dump", "dump_core"),
)
_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises):\n", re.MULTILINE)
_ITEM = re.compile(r"^    (\S.*?): (.*)$")


def page() -> str:
    """Return the whole of docs/library-reference.md."""
    return "\n".join([HEAD, *map(_entry, ORDER)])


def documented() -> set[str]:
    """Return the public names defined in the library itself."""
    found = {name: getattr(rbtrace_py, name) for name in rbtrace_py.__all__}
    return {
        name
        for name, value in found.items()
        if getattr(value, "__module__", "").startswith(measuring.__package__)
    }


def _entry(name: str) -> str:
    value = getattr(rbtrace_py, name)
    if not inspect.isclass(value):
        return f"## {name}\n\n{_function(name, value)}"
    parts = [f"## {name}\n", _text(value)]
    for member, inner in _members(value):
        parts.append(f"### {name}.{member}\n")
        parts.append(
            _text(inner) if isinstance(inner, property) else _function(member, inner)
        )
    return "\n".join(parts)


def _members(class_: type) -> Iterator[tuple[str, Any]]:
    for name, value in vars(class_).items():
        is_shown = inspect.isfunction(value) or isinstance(value, property)
        if is_shown and not name.startswith("_"):
            yield name, value


def _function(name: str, function: Any) -> str:
    return f"```python\n{_signature(name, function)}\n```\n\n{_text(function)}"


def _signature(name: str, function: Any) -> str:
    words = list(_parameters(function))
    returned = function.__annotations__.get("return", "None")
    line = f"def {name}({', '.join(words)}) -> {returned}"
    if len(line) <= WIDTH:
        return line
    inner = "".join(f"    {word},\n" for word in words)
    return f"def {name}(\n{inner}) -> {returned}"


def _parameters(function: Any) -> Iterator[str]:
    has_star = False
    for one in inspect.signature(function).parameters.values():
        if one.name == "self":
            continue
        if one.kind is one.KEYWORD_ONLY and not has_star:
            yield "*"
        has_star |= one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        star = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        default = "" if one.default is one.empty else f" = {one.default!r}"
        yield f"{star}{one.name}: {one.annotation}{default}"


def _text(value: Any) -> str:
    """Return the docstring as Markdown."""
    parts = _SECTION.split(inspect.getdoc(value) or "")
    text = [parts[0].rstrip() + "\n"]
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        items = list(_items(body))
        if title == "Args":
            items += _options(value)
        lines = [f"- `{name}`: {said}" if name else said for name, said in items]
        text.append(f"**{title}**\n\n" + "\n".join(map(_wrap, lines)) + "\n")
    return "\n".join(text).replace("``", "`")


def _items(body: str) -> Iterator[tuple[str, str]]:
    """Yield each item's name and text; continuation lines are indented."""
    lines = textwrap.dedent(body).strip()
    for item in re.split(r"\n(?=\S)", lines):
        name, colon, said = " ".join(item.split()).partition(": ")
        if name.startswith("**"):
            continue
        is_named = bool(colon) and " " not in name.replace(", ", ",")
        yield (name, said) if is_named else ("", " ".join(item.split()))


def _options(function: Any) -> Iterator[tuple[str, str]]:
    """Yield the keyword arguments behind ``**options``."""
    annotation = function.__annotations__.get("options", "")
    kind = re.fullmatch(r"Unpack\[(\w+)\]", annotation)
    if kind is None:
        return
    names = get_type_hints(getattr(measuring, kind[1]))
    said: dict[str, str] = {}
    for one in vars(measuring).values():
        # Python does not record the base classes of a TypedDict.
        if is_typeddict(one) and get_type_hints(one).keys() <= names.keys():
            said.update(_items((one.__doc__ or "").partition("Attributes:\n")[2]))
    yield from ((name, said[name]) for name in names)


def _wrap(line: str) -> str:
    return textwrap.fill(line, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def main() -> int:
    if sys.argv[1:] == ["--check"]:
        if PAGE.is_file() and PAGE.read_text() == page():
            return 0
        print(f"{PAGE} is out of date: run {__file__}", file=sys.stderr)
        return 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
