"""``rbtrace-py`` forked from an interpreter that has imported it: starting one is slow.

The interpreter runs no command itself, so each command finds it in a fresh state, with
the environment, directory, limits, and streams of its caller.
"""

from __future__ import annotations

import array
import functools
import gc
import importlib
import json
import os
import pkgutil
import resource
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
_START = "import warm; warm.serve({})"
_OF_INTERPRETERS = ("PYTHON", "LANG", "LC_")
"""Variables that an interpreter reads at its start."""
_LIMITS = [getattr(resource, n) for n in dir(resource) if n.startswith("RLIMIT_")]
_MOST = 1 << 20


def is_like_ours(environment: Mapping[str, str]) -> bool:
    """Return whether an interpreter would start in ``environment`` as this one did
    in its own."""
    return _for_interpreters(environment) == _for_interpreters(_ENVIRONMENT)


def _for_interpreters(environment: Mapping[str, str]) -> dict[str, str]:
    names = [name for name in environment if name.startswith(_OF_INTERPRETERS)]
    return {name: environment[name] for name in names if name != "PYTHONPATH"}


_ENVIRONMENT = dict(os.environ)


class Warm:
    """A command, like ``subprocess.Popen`` as far as tests use it.

    ``ready`` is the descriptor that it writes to once it is attached. ``folder`` is its
    working directory.
    """

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        ready: int = -1,
        folder: str = ".",
    ) -> None:
        self.returncode: int | None = None
        self._handle = -1
        self._status, theirs = socket.socketpair()
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        request = {
            "words": list(words),
            "environment": dict(environment),
            "directory": os.path.abspath(folder),
            "limits": [resource.getrlimit(limit) for limit in _LIMITS],
            "signals": [signal.getsignal(n) is signal.SIG_IGN for n in _DEFAULTS],
        }
        files = [theirs.fileno(), 0, out_end, err_end, *([ready] if ready >= 0 else [])]
        _control().sendmsg(
            [json.dumps(request).encode()],
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))],
        )
        theirs.close()
        os.close(out_end)
        os.close(err_end)
        self.stdout = os.fdopen(out)
        self.stderr = os.fdopen(err)
        self._said = b""
        self.pid = int(self._number(None))
        # Some commands have already ended.
        with suppress(ProcessLookupError):
            self._handle = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        return self._wait(0.0)

    def wait(self, timeout: float | None = None) -> int:
        if self._wait(timeout) is None:
            raise subprocess.TimeoutExpired("rbtrace-py", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self._handle >= 0 and self.poll() is None:
            signal.pidfd_send_signal(self._handle, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end and return its output."""
        found = {self.stdout: b"", self.stderr: b""}
        end = None if timeout is None else time.monotonic() + timeout
        with selectors.DefaultSelector() as waiting:
            for stream in found:
                waiting.register(stream, selectors.EVENT_READ, stream)
            while waiting.get_map():
                left = None if end is None else end - time.monotonic()
                ready = waiting.select(left)
                if not ready:
                    raise subprocess.TimeoutExpired("rbtrace-py", timeout or 0.0)
                for key, _ in ready:
                    data = os.read(key.fd, 65536)
                    found[key.data] += data
                    if not data:
                        waiting.unregister(key.fileobj)
        self.wait(None if end is None else max(0.0, end - time.monotonic()))
        texts = [data.decode().replace("\r\n", "\n") for data in found.values()]
        self.close()
        return texts[0], texts[1]

    def close(self) -> None:
        self.stdout.close()
        self.stderr.close()

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            found = self._number(timeout)
            if found is not None:
                self.returncode = found
                self._status.close()
                if self._handle >= 0:
                    os.close(self._handle)
        return self.returncode

    def _number(self, timeout: float | None) -> Any:
        """Return the next number about it: first its pid, then its exit code."""
        if b"\n" not in self._said:
            if not select.select([self._status], [], [], timeout)[0]:
                return None
            self._said += self._status.recv(64)
            assert self._said, "the interpreter that starts commands has ended"
        line, _, self._said = self._said.partition(b"\n")
        return int(line)


_DEFAULTS: dict[int, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGQUIT: signal.SIG_DFL,
}


@functools.cache
def _control() -> socket.socket:
    """Start the interpreter, which ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    subprocess.Popen(
        [sys.executable, "-c", _START.format(theirs.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(theirs.fileno(),),
        env={**_ENVIRONMENT, "PYTHONPATH": f"{ROOT / 'tracer'}:{ROOT / 'tests'}"},
    )
    theirs.close()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST)
    return ours


# ------------------------------------------------------- in that interpreter


def serve(fd: int) -> None:
    """Start a command for each request, until the requesting end is closed."""
    import rbtrace_py
    from rbtrace_py.cli.main import main

    for module in pkgutil.walk_packages(rbtrace_py.__path__, "rbtrace_py."):
        importlib.import_module(module.name)
    gc.freeze()  # or each command's garbage collector would copy all of it
    control = socket.socket(fileno=fd)
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    running: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([fd, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            for pid, status in _ended():
                with running.pop(pid) as connection:
                    _say(connection, os.waitstatus_to_exitcode(status))
        if fd not in ready:
            continue
        data, files, _, _ = socket.recv_fds(control, _MOST, 8)
        if not data:
            return
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            kept = [control.fileno(), woken, wakes]
            kept += [one.fileno() for one in running.values()]
            _run(json.loads(data), files, kept, main)
        running[pid] = socket.socket(fileno=files[0])
        for each in files[1:]:
            os.close(each)
        _say(running[pid], pid)


def _say(connection: socket.socket, number: int) -> None:
    try:
        connection.sendall(b"%d\n" % number)
    except BrokenPipeError:
        return


def _ended() -> Iterator[tuple[int, int]]:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def _run(
    request: Any, files: list[int], kept: list[int], main: Callable[..., NoReturn]
) -> NoReturn:
    """Run the command."""
    code = 70
    try:
        connection, *streams = files
        for number, file in enumerate(streams[:3]):
            os.dup2(file, number)
        for file in (*kept, connection, *streams[:3]):
            os.close(file)
        environment = request["environment"]
        if streams[3:]:
            environment["RBTRACE_READY_FD"] = str(streams[3])
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(request["directory"])
        for limit, values in zip(_LIMITS, request["limits"], strict=True):
            if resource.getrlimit(limit) != tuple(values):
                resource.setrlimit(limit, values)
        for number, is_ignored in zip(_DEFAULTS, request["signals"], strict=True):
            signal.signal(number, signal.SIG_IGN if is_ignored else _DEFAULTS[number])
        sys.argv = ["-c", *request["words"]]
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    finally:
        _leave(code)


def _leave(code: int) -> NoReturn:
    """End as an interpreter does: run registered exit functions, then close the
    streams."""
    import atexit
    import threading

    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        code = 120
    os._exit(code)
