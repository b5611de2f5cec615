"""``completion``: a shell's completion script."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print a shell completion script.

    \b
    Examples:
      eval "$(rbtrace-py completion bash)"    in ~/.bashrc
      eval "$(rbtrace-py completion zsh)"     in ~/.zshrc
      rbtrace-py completion fish > ~/.config/fish/completions/rbtrace-py.fish
    """
    click.echo(script(shell))


def script(shell: str) -> str:
    """It asks the command itself what can stand where the cursor is."""
    from rbtrace_py.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    return kind(cli, {}, "rbtrace-py", "_RBTRACE_PY_COMPLETE").source()
