"""``doctor``: capabilities of this machine, missing requirements, and remedies."""

from __future__ import annotations

import click

from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common.option_fields import argument, option, typed
from rbtrace_py.cli.common.output import opened
from rbtrace_py.cli.common.pid_completion import complete_pid
from rbtrace_py.cli.common.target_options import choose_pids, ps_option
from rbtrace_py.errors import UsageError
from rbtrace_py.model.checks import CheckStatus
from rbtrace_py.report.json.serializer import dumps
from rbtrace_py.report.json.setup import doctor_document
from rbtrace_py.report.terminal.doctor import doctor_lines
from rbtrace_py.session.doctor import checks
from rbtrace_py.session.targets.targets import parse_pids


class _Options(o.OutputOptions):
    pid: str | None = argument(required=False, shell_complete=complete_pid)
    pid_word: str | None = option("-p", "--pid", metavar="PID", help="Same as PID.")
    ps: str | None = ps_option()


@click.command("doctor")
@typed(_Options)
def command(options: _Options) -> int:
    """Check what this machine and a process allow.

    Each line says what to do. The exit code is 1 if tracing cannot work.

    \b
    Examples:
      sudo rbtrace-py doctor
      sudo rbtrace-py doctor 1234
      sudo rbtrace-py doctor --ps puma
    """
    named = list(filter(None, (options.pid, options.pid_word)))
    if named and options.ps is not None:
        raise UsageError("PID and --ps cannot be combined", "Name the target once")
    pids = parse_pids(",".join(named)) if named else [None]
    if options.ps is not None:
        pids = choose_pids(options.ps, subprocesses=False)
    if len(pids) > 1:
        raise UsageError("doctor checks one process at a time")
    found = checks(pids[0])
    with opened(options.output) as out:
        if options.as_json:
            out.lines([dumps(doctor_document(pids[0], found))])
        else:
            out.lines(doctor_lines(found, out.style))
    return int(any(check.status is CheckStatus.FAIL for check in found))
