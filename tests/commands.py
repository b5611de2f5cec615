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
    """``rbtrace-py`` as a process that was told to say when it is attached.

    waits: until it is attached, or has ended
    command: what to run in place of this checkout's
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
        """Press Ctrl-C; output, errors and exit code."""
        self.process.send_signal(number)
        return self.result()

    def result(self) -> tuple[str, str, int]:
        out, err = self.process.communicate(timeout=TIMEOUT)
        return out, err, self.process.returncode


@functools.cache
def has_ruby_probes() -> bool:
    """Was this machine's Ruby built with probes of its own? Debian's 3.3 was not."""
    from rbtrace_py.linux.probes import find_probes
    from rbtrace_py.linux.process import Process

    target = Target("ruby", "-e", "$stdout.sync = true; puts :ready; gets")
    try:
        probes = find_probes(Process(target.pid))
        return any(probe.provider == "ruby" for probe in probes)
    finally:
        target.close()


def by_names(document: Any) -> Counter[tuple[str, ...]]:
    """Weights of stacks as JSON, by the names of their frames, the root first."""
    names = [frame["name"] for frame in document["frames"]]
    found: Counter[tuple[str, ...]] = Counter()
    for row in document["stacks"]:
        found[tuple(names[frame] for frame in row["frames"])] += row["weight"]
    return found


def below(document: Any, name: str) -> int:
    """Weight of the stacks in which a method is."""
    return sum(count for names, count in by_names(document).items() if name in names)


def if_ruby_has(*words: str) -> list[str]:
    """Words for Ruby's own probes, where it has any."""
    return list(words) if has_ruby_probes() else []


def run(
    *words: object, env: dict[str, str] | None = None, folder: Path | None = None
) -> tuple[str, str, int]:
    """Run ``rbtrace-py`` to its end, in ``folder``: output, errors, exit code.

    The errors lack the line about the begin, which test_starts.py checks.
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
    """Run ``COMMAND`` with its words, maybe behind other programs, in a new process.

    ``run`` forks a process that has the package loaded, so it can start no program that
    changes rights or limits first.
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
    """Start the command: a fork, unless another or another interpreter is meant."""
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
    """Press Ctrl-C and read the JSON document it ends with."""
    out, err, code = tracer.finish()
    assert code == 0, out + err
    return json.loads(out)


def by_key(document: Any) -> dict[Any, int]:
    """Counts of a document's groups by key."""
    return {group["key"]: group["count"] for group in document["groups"]}
