"""``count PID PROBE`` once, with a clock at every stage; called by startup.py.

    python stages.py STARTED PID PROBE

STARTED is the monotonic clock when the process was started. The last line is
a JSON object of seconds by stage.
"""

import time

BEGAN = time.monotonic()

import contextlib  # noqa: E402
import io  # noqa: E402
import json  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402
from typing import Any  # noqa: E402

SPENT: dict[str, float] = {}


def clocked(stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        start = time.monotonic()
        try:
            return function(*arguments, **named)
        finally:
            SPENT[stage] = SPENT.get(stage, 0.0) + time.monotonic() - start

    return call


def main() -> None:
    started, pid, probe = float(sys.argv[1]), sys.argv[2], sys.argv[3]
    imports = time.monotonic()
    import rbtrace_py.cli.count
    from rbtrace_py.bpf import attach, compiler, maps, program, syscall
    from rbtrace_py.cli.main import main as command
    from rbtrace_py.session.probes import session

    SPENT["interpreter"] = BEGAN - started
    SPENT["imports"] = time.monotonic() - imports
    assert rbtrace_py.cli.count
    session.find_probes = clocked("scan", session.find_probes)
    compiler.import_bcc = clocked("import bcc", compiler.import_bcc)
    program.compile_program = clocked("compile", program.compile_program)
    syscall.load_program = clocked("load", syscall.load_program)
    maps.Map.__init__ = clocked("maps", maps.Map.__init__)  # type: ignore[method-assign]
    attach.Attachment.close = clocked(  # type: ignore[method-assign]
        "detach", attach.Attachment.close
    )
    # Loading happens inside of attaching, importing bcc inside of compiling:
    # they are taken out below.
    for kind in (attach.UprobeMulti, attach.PerfUprobes):
        kind.attach = clocked("attach", kind.attach)  # type: ignore[method-assign]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        command(["count", pid, probe, "--duration", "1ms"])
    SPENT["attach"] -= SPENT["load"]
    SPENT["compile"] -= SPENT.setdefault("import bcc", 0.0)
    SPENT["done"] = time.monotonic() - started
    print(json.dumps(SPENT))


main()
