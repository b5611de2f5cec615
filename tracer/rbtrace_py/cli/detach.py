"""``detach``: stop the agent in a process."""

from __future__ import annotations

from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common.output import opened
from rbtrace_py.cli.common.per_process import each
from rbtrace_py.cli.common.target_options import target_command
from rbtrace_py.cli.common.waiting import waiting_for
from rbtrace_py.linux.process import Process
from rbtrace_py.report.json.inside import detached_document
from rbtrace_py.report.json.serializer import dumps
from rbtrace_py.report.terminal.attach import detached_lines
from rbtrace_py.session.inside import attach
from rbtrace_py.session.targets.targets import Targets


class _Options(o.YesOption, o.JsonOption):
    time_limit: float = o.time_limit_option(attach.DETACH_SECONDS, attach.MOST_SECONDS)


@target_command("detach", "PID", _Options)
def command(targets: Targets, words: tuple[str, ...], options: _Options) -> int:
    """Stop the agent in a process.

    Its socket and threads are removed, and everything armed through it is disarmed.
    If that would end another tracer's session, --yes is required. The agent's code
    stays in the process, inactive; `attach` starts it again.

    \b
    Examples:
      rbtrace-py detach 1234
      rbtrace-py detach 1234 --subprocesses
    """

    def one(process: Process) -> None:
        with waiting_for([process.pid]) as waiting:
            confirm = waiting.before(options.confirm)
            found = attach.detach(process, confirm, options.time_limit)
        with opened(None) as output:
            if options.as_json:
                output.lines([dumps(detached_document(found))])
            else:
                output.lines(detached_lines(found, output.style))

    return each("detach", targets, words, one)
