"""``memory``: a process's Ruby heap, and its memory as the kernel counts it."""

from __future__ import annotations

from rbtrace_py.agent.place import HiddenAgent, NoAgent, runs_no_ruby
from rbtrace_py.cli.common.messages import say_note
from rbtrace_py.cli.common.per_process import AgentReportOptions, check_words, show
from rbtrace_py.cli.common.target_options import target_command
from rbtrace_py.linux.process import Process
from rbtrace_py.model.process_state import MemoryUse
from rbtrace_py.report.json.inside import memory_document
from rbtrace_py.report.terminal.inside import memory_lines
from rbtrace_py.session.inside import commands
from rbtrace_py.session.targets.targets import Targets


@target_command("memory", "PID", AgentReportOptions)
def command(
    targets: Targets, words: tuple[str, ...], options: AgentReportOptions
) -> None:
    """Show a process's memory: resident size, Ruby objects, GC.stat.

    The agent in the process answers (see `eval --help` for how to load it).
    Without one, only the kernel's sizes are shown. Counting objects walks the heap,
    which pauses the program: about 20 ms per million objects.

    \b
    Examples:
      rbtrace-py memory 1234
      rbtrace-py memory 1234 --json
    """
    check_words("memory", targets, words)
    show(targets, options, _memory, memory_document, memory_lines)


def _memory(process: Process) -> MemoryUse:
    try:
        return commands.memory(process)
    except NoAgent as error:
        if runs_no_ruby(process):
            raise
        found = commands.memory_by_kernel(process)
        is_hidden = isinstance(error, HiddenAgent)
        hint = error.hint if is_hidden else "--attach loads the agent"
        say_note(f"{error}: objects and GC.stat are unknown ({hint})")
        return found
