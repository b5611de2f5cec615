#!/usr/bin/env python3
"""Make docs/commands/ from the help of the commands.

scripts/gen_cli_docs.py              write the pages
scripts/gen_cli_docs.py --check      exit code 1 if a page is out of date
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "commands"
WIDTH = 80

sys.path.insert(0, str(ROOT / "tracer"))

import click  # noqa: E402

from rbtrace_py.cli.main import COMMANDS, cli  # noqa: E402

INDEX = """\
# Commands

{links}

The [pages by task](../index.md) show the commands at work.

{help}"""


def pages() -> dict[str, str]:
    """Return the pages by file name: one per command, and index.md."""
    top = click.Context(cli, info_name="rbtrace-py", **_settings())
    links = " ·\n".join(f"[{name}]({name}.md)" for name in COMMANDS)
    own_help = _help("rbtrace-py --help", cli.get_help(top))
    return {
        "index.md": INDEX.format(links=links, help=own_help),
        **{f"{name}.md": _page(name, top) for name in COMMANDS},
    }


def _page(name: str, top: click.Context) -> str:
    command = cli.get_command(top, name)
    assert command is not None
    context = click.Context(command, info_name=name, parent=top, **_settings())
    text = _help(f"rbtrace-py {name} --help", command.get_help(context))
    return f"# rbtrace-py {name}\n\n{text}"


def _settings() -> dict[str, object]:
    return {**cli.context_settings, "terminal_width": WIDTH}


def _help(call: str, text: str) -> str:
    return f"```\n$ {call}\n{text.rstrip()}\n```\n"


def main() -> int:
    made = pages()
    there = {path.name: path.read_text() for path in FOLDER.glob("*.md")}
    if sys.argv[1:] == ["--check"]:
        if made == there:
            return 0
        print(f"{FOLDER} is out of date: run scripts/gen_cli_docs.py", file=sys.stderr)
        return 1
    FOLDER.mkdir(exist_ok=True)
    for name in there.keys() - made.keys():
        (FOLDER / name).unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
