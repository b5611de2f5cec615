"""Hook all methods of a process with an empty function: the minimum cost of any hook.

    python tests/bench/empty_hook.py PID

It ends by SIGINT and writes "attached" to RBTRACE_READY_FD, as the commands do.
"""

from __future__ import annotations

import os
import signal
import sys

from rbtrace_py.agent.arming import Armed, ArmRequest
from rbtrace_py.agent.shared import HookMode
from rbtrace_py.linux.process import Process


def main() -> None:
    with Process(int(sys.argv[1])) as process:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        with Armed(process, ArmRequest(HookMode.EMPTY)):
            with os.fdopen(int(os.environ["RBTRACE_READY_FD"]), "w") as ready:
                ready.write("attached\n")
            signal.sigwait({signal.SIGINT})


main()
