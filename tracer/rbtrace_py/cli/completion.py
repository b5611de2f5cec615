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
    click.echo(script(click.get_current_context().find_root().command, shell))


def script(command: click.Command, shell: str) -> str:
    """Return a shell's script that completes the words of the whole command."""
    kind = get_completion_class(shell)
    assert kind is not None
    return kind(command, {}, "rbtrace-py", "_RBTRACE_PY_COMPLETE").source()
