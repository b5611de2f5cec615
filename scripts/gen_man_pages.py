#!/usr/bin/env python3
"""Write man pages of the command and of each verb from their help.

scripts/gen_man_pages.py FOLDER
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tracer"))

import click  # noqa: E402
from click_man.man import ManPage  # noqa: E402

from rbtrace_py import __version__  # noqa: E402
from rbtrace_py.cli.main import COMMANDS, cli  # noqa: E402

NAME = "rbtrace-py"
ABOUT = "profile and trace running Ruby processes"


def pages() -> Iterator[tuple[str, str]]:
    """Yield each page's file name and text."""
    top = click.Context(cli, info_name=NAME)
    page = _page(top, ABOUT)
    page.commands = [(name, _roff(line)) for name, line in COMMANDS.items()]
    yield f"{NAME}.1", str(page)
    for name, line in COMMANDS.items():
        command = cli.get_command(top, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=top)
        yield f"{NAME}-{name}.1", str(_page(context, line.rstrip(".")))


def write(folder: Path) -> list[Path]:
    """Write all pages, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages():
        (folder / name).write_text(text)
    return [folder / name for name, _ in pages()]


def _page(context: click.Context, about: str) -> ManPage:
    command = context.command
    page = ManPage(context.command_path)
    page.version = __version__
    page.short_help = _roff(about)
    page.synopsis = " ".join(command.collect_usage_pieces(context))
    page.description = _description(command.help or "")
    options = [each for each in command.params if isinstance(each, click.Option)]
    records = (option.get_help_record(context) for option in options)
    page.options = [(names, _roff(text)) for names, text in filter(None, records)]
    return page


def _description(text: str) -> str:
    """Return its paragraphs. Paragraphs after ``\\b`` keep their lines, as in click."""
    paragraphs = []
    for paragraph in cleandoc(text).split("\n\n"):
        lines = paragraph.removeprefix("\b\n")
        filled = lines == paragraph
        paragraphs.append(_roff(lines) if filled else f".nf\n{_roff(lines)}\n.fi")
    return "\n\n".join(paragraphs)


def _roff(text: str) -> str:
    """Escape requests at the beginning of lines, hyphens, and non-ASCII characters."""
    text = text.replace("\\", r"\e").replace("-", r"\-")
    text = "".join(c if c.isascii() else rf"\[u{ord(c):04X}]" for c in text)
    return re.sub(r"^(?=[.'])", r"\\&", text, flags=re.MULTILINE)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
