"""``rbtrace-py`` as tests run it: to its end, or until Ctrl-C."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from processes import MAIN, ROOT, TIMEOUT, Target, read_line
from warm import Warm, is_like_ours


def without_times(text: str) -> str:
    """Return what ``calls`` prints, with ``<>`` for ``<1.24 ms>``."""
    time = r"\d[\d,.]* (?:ns|µs|ms|s)"
    return re.sub(rf"<{time}(?:, {time} on CPU)?>", "<>", text)


COMMAND = (sys.executable, "-c", MAIN)


class Tracer:
    """``rbtrace-py`` as a process that reports when it is attached.

    ``waits`` makes the constructor wait until it is attached or has ended. ``command``
    replaces this checkout's command.
    """

    def __init__(
        self,
        *arguments: str,
        env: dict[str, str] | None = None,
        waits: bool = True,
        command: Sequence[str] = COMMAND,
    ) -> None:
        read, write = os.pipe()
        self.process = _started(arguments, env or {}, write, command)
        os.close(write)
        with os.fdopen(read) as ready:
            self.attached = waits and read_line(ready) == "attached"
        if waits and not self.attached:
            out, err = self.process.communicate(timeout=TIMEOUT)
            raise AssertionError(f"it ended before it was attached: {out}{err}")

    def finish(self, number: int = signal.SIGINT) -> tuple[str, str, int]:
        """Press Ctrl-C. Return the output, the errors, and the exit code."""
        self.process.send_signal(number)
        return self.result()

    def result(self) -> tuple[str, str, int]:
        out, err = self.process.communicate(timeout=TIMEOUT)
        return out, err, self.process.returncode


@functools.cache
def has_ruby_probes() -> bool:
    """Return whether this machine's Ruby was built with its own probes. Debian's 3.3
    was not."""
    from rbtrace_py.linux.probes import find_probes
    from rbtrace_py.linux.process import Process

    target = Target("ruby", "-e", "$stdout.sync = true; puts :ready; gets")
    try:
        probes = find_probes(Process(target.pid))
        return any(probe.provider == "ruby" for probe in probes)
    finally:
        target.close()


def by_names(document: Any) -> Counter[tuple[str, ...]]:
    """Return the weights of a JSON document's stacks by frame names, root first."""
    names = [frame["name"] for frame in document["frames"]]
    found: Counter[tuple[str, ...]] = Counter()
    for row in document["stacks"]:
        found[tuple(names[frame] for frame in row["frames"])] += row["weight"]
    return found


def below(document: Any, name: str) -> int:
    """Return the weight of the stacks that contain a method."""
    return sum(count for names, count in by_names(document).items() if name in names)


def if_ruby_has(*words: str) -> list[str]:
    """Return the words if Ruby has its own probes, else no words."""
    return list(words) if has_ruby_probes() else []


def run(
    *words: object, env: dict[str, str] | None = None, folder: Path | None = None
) -> tuple[str, str, int]:
    """Run ``rbtrace-py`` to its end, in ``folder``. Return the output, the errors, and
    the exit code.

    The errors lack the line about the start, which test_starts.py checks.
    """
    process = _started(list(map(str, words)), env or {}, folder=folder)
    try:
        out, err = process.communicate(timeout=TIMEOUT)
    except BaseException:
        process.kill()
        raise
    assert process.returncode is not None
    return out, err.replace("rbtrace-py: tracing\n", "", 1), process.returncode


def run_program(
    command: Sequence[object],
    pass_fds: Sequence[int] = (),
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``COMMAND``, perhaps through other programs, in a new process.

    ``run`` forks a process that has the package loaded, so it cannot first run a
    program that changes rights or limits.
    """
    return subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}/tracer", **(env or {})},
        pass_fds=pass_fds,
    )


def _started(
    words: Sequence[str],
    env: dict[str, str],
    ready: int = -1,
    command: Sequence[str] = COMMAND,
    folder: Path | None = None,
) -> subprocess.Popen[str] | Warm:
    """Start the command as a fork, unless another command or interpreter is given."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tracer"), **env}
    if command is COMMAND and is_like_ours(environment):
        return Warm(words, environment, ready, str(folder or "."))
    if ready >= 0:
        environment["RBTRACE_READY_FD"] = str(ready)
    return subprocess.Popen(
        [*command, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=() if ready < 0 else (ready,),
        env=environment,
        cwd=folder,
    )


def answer(tracer: Tracer) -> Any:
    """Press Ctrl-C and return the final JSON document."""
    out, err, code = tracer.finish()
    assert code == 0, out + err
    return json.loads(out)


def by_key(document: Any) -> dict[Any, int]:
    """Return the counts of a document's groups by key."""
    return {group["key"]: group["count"] for group in document["groups"]}
