"""``attach``: load the agent into a running process."""

from __future__ import annotations

from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common.messages import say
from rbtrace_py.cli.common.option_fields import option
from rbtrace_py.cli.common.output import opened
from rbtrace_py.cli.common.per_process import each
from rbtrace_py.cli.common.target_options import target_command
from rbtrace_py.cli.common.waiting import waiting_for
from rbtrace_py.linux.process import Process
from rbtrace_py.report.json.inside import attached_document
from rbtrace_py.report.json.serializer import dumps
from rbtrace_py.report.terminal.attach import attached_lines
from rbtrace_py.session.inside import attach
from rbtrace_py.session.targets.targets import Targets


class _Options(o.YesOption, o.JsonOption):
    time_limit: float = o.time_limit_option(attach.ATTACH_SECONDS, attach.MOST_SECONDS)
    no_hook: bool = option(
        "--no-hook", help="Leave out method events; no C compiler needed."
    )


@target_command("attach", "PID", _Options)
def command(targets: Targets, words: tuple[str, ...], options: _Options) -> int:
    """Load the agent into a running Ruby process.

    The main thread is paused for about a millisecond (longer if it has to wait for
    a CPU; the time is printed) and led through a Ruby function that schedules one
    line of code for the next safe moment. That line starts a thread, which loads
    the agent from files that are deleted a moment later. The process is then as if
    it had called `require "tracepoint/agent"`: it has a sleeping thread, and a
    socket, which only its own user and root can use. Processes it forks later have
    the agent too. The agent stays until the process exits, or until `detach`.

    attach refuses a process that it could harm: a process that is traced or stopped
    already, has a seccomp filter that forbids the necessary system calls, or is not
    x86-64. Reading the filter pauses the process once more. Only root outside
    containers can read it; otherwise --yes is required. With --yes, a filter that
    kills may end the process. A filter that returns errors does no harm: the
    default filters of Docker, Podman, and Kubernetes return errors.

    \b
    Examples:
      rbtrace-py attach 1234
      rbtrace-py attach 1234 --subprocesses     workers too
      rbtrace-py attach --ps puma --json
    """

    def one(process: Process) -> None:
        seconds, has_hook = options.time_limit, not options.no_hook
        with waiting_for([process.pid]) as waiting:
            announce, confirm = waiting.before(say), waiting.before(options.confirm)
            found = attach.attach(process, announce, seconds, has_hook, confirm=confirm)
        with opened(None) as output:
            if options.as_json:
                output.lines([dumps(attached_document(found))])
            else:
                output.lines(attached_lines(found, output.style))

    return each("attach", targets, words, one)
