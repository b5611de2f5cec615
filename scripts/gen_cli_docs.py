#!/usr/bin/env python3
"""docs/cli.md, out of what the commands say of themselves.

scripts/gen_cli_docs.py > docs/cli.md
scripts/gen_cli_docs.py --check      exit code 1 if docs/cli.md is another
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "cli.md"
WIDTH = 80

sys.path.insert(0, str(ROOT / "tracer"))

import click  # noqa: E402

from rbtrace_py.cli.main import COMMANDS, cli  # noqa: E402

HEAD = """\
# Commands

What `rbtrace-py --help` and the help of each command say. This page is made by
`scripts/gen_cli_docs.py`; a test compares the two. The [pages by
task](index.md) show the commands at work.
"""


def page() -> str:
    """The whole of docs/cli.md."""
    return "\n".join([HEAD, *_sections()])


def _sections() -> Iterator[str]:
    top = click.Context(cli, info_name="rbtrace-py", **_settings())
    yield _section("rbtrace-py", "rbtrace-py --help", cli.get_help(top))
    for name in COMMANDS:
        command = cli.get_command(top, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=top, **_settings())
        call = f"rbtrace-py {name} --help"
        yield _section(f"rbtrace-py {name}", call, command.get_help(context))


def _settings() -> dict[str, object]:
    return {**cli.context_settings, "terminal_width": WIDTH}


def _section(title: str, call: str, text: str) -> str:
    return f"## {title}\n\n```\n$ {call}\n{text.rstrip()}\n```\n"


def main() -> int:
    if sys.argv[1:] == ["--check"]:
        if PAGE.is_file() and PAGE.read_text() == page():
            return 0
        print(f"{PAGE} is old: scripts/gen_cli_docs.py > docs/cli.md", file=sys.stderr)
        return 1
    sys.stdout.write(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
