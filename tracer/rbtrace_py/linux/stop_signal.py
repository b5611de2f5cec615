"""The time of the signal that asked this command to end.

The command's signal handlers record it. Waits for a target check it, because a
malicious target may never answer.
"""

from __future__ import annotations

import math
import threading
import time

_times: list[float] = []


def record() -> None:
    """Record the time of a signal. Only the first one counts."""
    _times.append(time.monotonic())


def has_come() -> bool:
    """Return whether a signal has asked this command to end."""
    return bool(_times)


def limit(began: float, seconds: float) -> float:
    """Return the deadline of a wait that may outlast the signal by ``seconds``.

    Args:
        began: Start of the wait. If the signal came earlier, ``seconds`` count from
            here.
        seconds: Seconds to wait.

    Returns:
        A time of the monotonic clock. It is infinite without a signal, and in threads
        other than the main thread, because the main thread ends their waits.
    """
    is_main = threading.current_thread() is threading.main_thread()
    return max(_times[0], began) + seconds if _times and is_main else math.inf
