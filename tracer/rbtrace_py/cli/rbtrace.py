"""``rbtrace``: rbtrace's own flags, run by our commands."""

from __future__ import annotations

import shlex
import sys

import click

from rbtrace_py import __version__
from rbtrace_py.cli.common.output import Output
from rbtrace_py.cli.common.rbtrace_arguments import Translated, translate
from rbtrace_py.report.style import Style
from rbtrace_py.report.text import escape


@click.command(
    "rbtrace",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    options_metavar="[RBTRACE'S OPTIONS]",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="")
@click.pass_context
def command(ctx: click.Context, words: tuple[str, ...]) -> int:
    """Accept rbtrace's flags.

    The equivalent rbtrace-py command is printed first. If several actions are
    given, only the first of fork, backtraces, memory, heapdump, shapesdump, eval
    and console runs.

    \b
      -p PID..., --ps REGEX, -x (--exec) COMMAND...  targets
      -f, -m METHOD..., -c NAME|FILE..., -g (--gc)   calls (--exec alone: all)
      -s [MS], -l (--slowcpu) [MS]                   calls --slow, --slowcpu
      -w (--slow-methods) METHOD...                  calls --slow-methods
      -t, -n, -r N, -o FILE, -a                      the same options of calls
      -e CODE                                        eval
      -i                                             console
      -b (--backtraces), --backtrace N               backtraces, eval
      -y (--memory)                                  memory
      -h [FILE] (--heapdump), --shapesdump [FILE]    heapdump, shapesdump
      -k (--fork)                                    fork
      -u (--timeout) SECONDS                         --timeout
      -v (--version)                                 version of rbtrace-py
      -d (--devmode), --wait SECONDS                 ignored; not needed here

    rbtrace-py's --c-calls, --attach and --yes work as well. The process must have
    loaded the agent (see `eval --help`), not rbtrace's gem.

    \b
    Examples:
      rbtrace-py rbtrace -p 1234 -f
      rbtrace-py rbtrace -p 1234 -m String#gsub Digest. --gc -t
      rbtrace-py rbtrace -p 1234 --slow=100 -o slow.log
      rbtrace-py rbtrace -p 1234 -e 'GC.stat'
      rbtrace-py rbtrace --exec ruby shop.rb
    """
    behind = (ctx.obj or {}).get("command") or []
    if words in ((), ("-h",)) or "--help" in _own(words):
        click.echo(ctx.get_help())
        return 0 if words else 2
    if {"-v", "--version"}.intersection(_own(words)):
        click.echo(f"rbtrace-py, version {__version__}")
        return 0
    words = (*words, "--", *behind) if behind else words
    found = translate(words)
    _say(found)
    result = ctx.find_root().command.main(
        found.words,
        prog_name="rbtrace-py",
        standalone_mode=False,
        obj={"command": found.command},
    )
    return result if isinstance(result, int) else 0


def _own(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words for rbtrace itself, without the command that it starts."""
    return words[: words.index("--exec")] if "--exec" in words else words


def _say(found: Translated) -> None:
    style = Style.for_stream(sys.stderr)
    behind = ["--", *found.command] if found.command else []
    line = shlex.join(["rbtrace-py", *found.words, *behind])
    Output(sys.stderr, "standard error").lines(
        [
            style.dim(f"rbtrace-py: {escape(text, style)}")
            for text in (line, *found.notes)
        ]
    )
