"""``memory``: what a process has in its heap, and what the kernel gave it."""

from __future__ import annotations

from typing import Any

import click

from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common.per_process import check_words, show
from rbtrace_py.report.terminal.inside import memory_document, memory_lines
from rbtrace_py.session.inside import commands
from rbtrace_py.session.targets.targets import Targets


@click.command("memory", options_metavar="[OPTIONS]")
@o.takes_only_target
@o.attach_option
@o.json_option
@o.output_option
def command(targets: Targets, words: tuple[str, ...], **values: Any) -> None:
    """Show a process's memory: resident size, Ruby objects, GC.stat.

    The agent in the process answers (see `eval --help` for how to load it).
    Counting objects walks the heap, which pauses the program: about 20 ms per
    million objects.

    \b
    Examples:
      rbtrace-py memory 1234
      rbtrace-py memory 1234 --json
    """
    check_words("memory", targets, words)
    show(targets, values, commands.memory, memory_document, memory_lines)
