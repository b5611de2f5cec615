"""The time of the signal that asked this command to end.

The command's signal handlers record it. Code that waits for a target reads it, as a
hostile target may not answer at all.
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
    """Return whether a signal has asked this command, and others, to end."""
    return bool(_times)


def limit(began: float, seconds: float) -> float:
    """Return when a wait ends that may last ``seconds`` longer than the signal.

    Args:
        began: When the wait began. If the signal came before that, ``seconds`` count
            from here.
        seconds: Seconds to wait.

    Returns:
        A time of the monotonic clock. It is infinite without a signal, and in threads
        other than the main one, whose waits the main thread ends.
    """
    is_main = threading.current_thread() is threading.main_thread()
    return max(_times[0], began) + seconds if _times and is_main else math.inf
