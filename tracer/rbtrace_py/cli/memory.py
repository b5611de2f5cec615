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
    """Show how much memory a process uses: its own, Ruby's objects, GC.stat.

    Asked is the process, through its agent (`eval --help` says how to load it).
    Objects are counted by walking the heap, which stops the program meanwhile:
    some 20 ms for a million of them.

    \b
    Examples:
      rbtrace-py memory 1234
      rbtrace-py memory 1234 --json
    """
    check_words("memory", targets, words)
    show(targets, values, commands.memory, memory_document, memory_lines)
