"""Files in a target's root: their owner, their lifetime, and protection from
deception."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from injecting import Bell, bell, injected

import rubies
from processes import TIMEOUT, Target, comes_true
from rbtrace_py.agent.files import NoPlace, NotRemoved, placed
from rbtrace_py.agent.inject import inject
from rbtrace_py.errors import NoSuchTarget, NotPermitted
from rbtrace_py.linux.process import Process
from rbtrace_py.session.inside.injection import ruby_addresses

__all__ = ["bell"]
pytestmark = pytest.mark.usefixtures("root")

NOBODY = 65534
IN_ROOT = """
import os, sys
root, user = sys.argv[1], int(sys.argv[2])
os.chroot(root)
os.chdir("/")
os.setgroups([])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
print("ready", flush=True)
sys.stdin.read()
"""
"""A process of a user in a root that is a mere directory."""


@contextmanager
def in_root(root: Path, user: int = NOBODY) -> Iterator[Process]:
    command = [sys.executable, "-c", IN_ROOT, str(root), str(user)]
    target = Target(*command)
    try:
        with Process(target.pid) as process:
            yield process
    finally:
        target.close()


@pytest.fixture
def a_root(tmp_path: Path) -> Path:
    """A root with a usual /tmp, accessible to every user."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder != Path("/tmp") and folder.is_relative_to("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o011)
    root = tmp_path / "root"
    (root / "tmp").mkdir(parents=True)
    root.chmod(0o755)
    (root / "tmp").chmod(0o1777)
    return root


def everything(root: Path) -> set[str]:
    """Return the paths below it, except for paths that disappear meanwhile."""
    return {
        os.path.relpath(os.path.join(folder, name), root)
        for folder, folders, files in os.walk(root)
        for name in (*folders, *files)
    }


def test_a_file_that_comes_while_they_go(
    a_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target creates it after the listing and before the directory is removed."""
    remove, made = os.rmdir, []

    def late(name: str, dir_fd: int) -> None:
        if not made:
            made.append(name)
            (a_root / "tmp" / name / "said").touch()
        remove(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", late)
    with in_root(a_root) as process:
        with placed(process, {"agent.rb": b"1", "said": None}):
            assert len(everything(a_root)) == 3
        assert everything(a_root) == {"tmp"}


def test_private_and_gone_afterwards(a_root: Path) -> None:
    files = {"agent.rb": b"1\n", "agent.so": bytes(3 << 20)}
    with in_root(a_root) as process:
        with placed(process, files) as (path, _):
            assert path.startswith("/tmp/.rbtrace-")
            folder = a_root / path.lstrip("/")
            assert sorted(os.listdir(folder)) == sorted(files)
            for found, mode in ((folder, 0o700), *((folder / n, 0o600) for n in files)):
                status = found.lstat()
                assert (status.st_uid, status.st_gid) == (NOBODY, NOBODY)
                assert stat.S_IMODE(status.st_mode) == mode
            for name, data in files.items():
                assert (folder / name).read_bytes() == data
        assert everything(a_root) == {"tmp"}


def test_two_at_once(a_root: Path) -> None:
    with (
        in_root(a_root) as process,
        placed(process, {"a": b"1"}) as (one, _),
        placed(process, {"a": b"2"}) as (two, _),
    ):
        assert one != two
    assert everything(a_root) == {"tmp"}


def test_files_that_the_target_already_removed(a_root: Path) -> None:
    with in_root(a_root) as process:
        with placed(process, {"a": b"1", "b": b"2"}) as (path, _):
            (a_root / path.lstrip("/") / "a").unlink()
        assert everything(a_root) == {"tmp"}


def test_a_file_that_the_target_makes_itself(a_root: Path) -> None:
    """It is removed with the others. A file of another name would keep the others."""
    with in_root(a_root) as process:
        for makes in (True, False):
            with placed(process, {"a": b"1", "said": None}) as (path, _):
                folder = a_root / path.lstrip("/")
                assert os.listdir(folder) == ["a"]
                if makes:
                    (folder / "said").touch()
            assert everything(a_root) == {"tmp"}


def test_an_error_in_the_block(a_root: Path) -> None:
    with in_root(a_root) as process:
        with pytest.raises(KeyError), placed(process, {"a": b"1"}):
            raise KeyError
        assert everything(a_root) == {"tmp"}


def test_a_link_that_leads_out_of_the_root(a_root: Path) -> None:
    """``/tmp`` is a link, which is resolved in the target's root."""
    (a_root / "tmp").rmdir()
    (a_root / "tmp").symlink_to("/etc")
    (a_root / "etc").mkdir()
    (a_root / "etc").chmod(0o1777)
    before = set(os.listdir("/etc"))
    with in_root(a_root) as process:
        with placed(process, {"a": b"1"}) as (path, _):
            assert (a_root / "etc" / Path(path).name / "a").read_bytes() == b"1"
            assert set(os.listdir("/etc")) == before
        assert everything(a_root) == {"tmp", "etc"}


@pytest.mark.parametrize(
    "kind", ["fifo", "file", "loop", "parent", "shared", "foreign"]
)
def test_a_root_that_is_hostile(kind: str, a_root: Path) -> None:
    """If every place is unsuitable, an error reports it, and no file is created."""
    place = a_root / "tmp"
    place.rmdir()
    if kind == "fifo":
        os.mkfifo(place, 0o666)
    elif kind == "file":
        place.touch(0o666)
    elif kind == "loop":
        place.symlink_to("/tmp")
    elif kind == "parent":
        # The parent of the root is the root.
        place.symlink_to("../../../..")
    elif kind == "shared":
        place.mkdir()
        place.chmod(0o777)
    else:
        place.mkdir()
        os.chown(place, 1234, 1234)
        place.chmod(0o1777)
    before = everything(a_root)
    with in_root(a_root) as process:
        with pytest.raises(NoPlace) as caught, placed(process, {"a": b"1"}):
            pass
        assert caught.value.hint
    assert everything(a_root) == before


ATTACK = """
import ctypes, os, sys
pid = sys.argv[1]
got = []
for name in ("exe", "root", "cwd", "mem", "environ", "fd/0"):
    try:
        if name not in ("mem", "environ"):
            os.stat(f"/proc/{pid}/{name}")
        if name in ("mem", "environ", "exe"):
            os.close(os.open(f"/proc/{pid}/{name}", os.O_RDONLY))
        got.append(name)
    except OSError:
        pass
libc = ctypes.CDLL(None)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
if libc.ptrace(0x4206, int(pid), 0, 0) == 0:
    got.append("ptrace")
print("read it", *got) if open(f"/proc/{pid}/status").read() else None
"""
"""A program that attacks a visible helper, as a process of a container may."""


def children() -> set[int]:
    found = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return set(map(int, found.split()))


IN_NAMESPACE = ("unshare", "--user", "--map-root-user")


@pytest.mark.parametrize(
    ("user", "as_container"),
    [
        (NOBODY, ("setpriv", "--reuid=65534", "--clear-groups", *IN_NAMESPACE)),
        (0, ("setpriv", "--bounding-set=-all", "--inh-caps=-all")),
    ],
    ids=["root of a user namespace", "root without capabilities"],
)
def test_the_helper_cannot_be_taken(
    user: int, as_container: tuple[str, ...], a_root: Path
) -> None:
    """Processes with its user's rights cannot, and it is in none of their
    namespaces."""
    with in_root(a_root, user) as process:
        before = children()
        with placed(process, {"a": b"1"}):
            (helper,) = children() - before
            command = [*as_container, "/usr/bin/python3", "-c", ATTACK, str(helper)]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=TIMEOUT
            )
            assert done.stdout == "read it\n", done.stderr
            assert os.readlink(f"/proc/{helper}/root") == "/"
            for name in os.listdir("/proc/self/ns"):
                inside = os.readlink(f"/proc/{helper}/ns/{name}")
                assert inside == os.readlink(f"/proc/self/ns/{name}")


def test_another_place_where_the_first_will_not_do(a_root: Path) -> None:
    (a_root / "tmp").chmod(0o755)
    (a_root / "var" / "tmp").mkdir(parents=True)
    (a_root / "var" / "tmp").chmod(0o1777)
    with in_root(a_root) as process, placed(process, {"a": b"1"}) as (path, _):
        assert path.startswith("/var/tmp/")


def test_a_directory_for_the_socket(a_root: Path) -> None:
    """It is created as private and the user's, or found so, and it stays."""
    old = a_root / "dev" / "shm" / "agent"
    (a_root / "dev" / "shm").mkdir(parents=True)
    (a_root / "dev" / "shm").chmod(0o1777)
    sockets = ["/tmp/agent/1.sock", "/dev/shm/agent/1.sock"]
    with in_root(a_root) as process:
        for _ in range(2):
            with placed(process, {}, sockets) as (_, socket):
                assert socket == sockets[0]
            status = (a_root / "tmp" / "agent").lstat()
            assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (NOBODY, 0o700)
            (a_root / "tmp" / "agent" / "1.sock").touch()
        with placed(process, {}, sockets):
            assert os.listdir(a_root / "tmp" / "agent") == []
        for spoil in (
            lambda path: path.chmod(0o750),
            lambda path: (path.rmdir(), path.symlink_to("/etc")),
            lambda path: (path.unlink(), path.touch()),
            lambda path: (path.unlink(), path.mkdir(0o700)),
        ):
            spoil(a_root / "tmp" / "agent")
            with placed(process, {}, sockets) as (_, socket):
                assert socket == sockets[1]
        assert stat.S_IMODE(old.lstat().st_mode) == 0o700
        (a_root / "dev" / "shm").chmod(0o755)
        old.rmdir()
        with placed(process, {}, sockets) as (_, socket):
            assert socket == ""


def test_a_target_of_root(a_root: Path) -> None:
    with in_root(a_root, 0) as process, placed(process, {"a": b"1"}) as (path, _):
        assert (a_root / path.lstrip("/") / "a").lstat().st_uid == 0
    assert everything(a_root) == {"tmp"}


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from rbtrace_py.agent.files import placed
from rbtrace_py.linux.process import Process
with Process(int(sys.argv[2])) as process, placed(process, {"a": b"1"}) as (path, _):
    print(path, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_removed_also_when_we_are_killed(a_root: Path) -> None:
    tracer = str(Path(__file__).resolve().parents[3] / "tracer")
    with in_root(a_root) as process:
        done = subprocess.run(
            [sys.executable, "-c", KILLED, tracer, str(process.pid)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
        assert done.returncode == -signal.SIGKILL
        assert done.stdout.startswith("/tmp/.rbtrace-")
        assert comes_true(lambda: everything(a_root) == {"tmp"})


def kill_helper(before: set[int]) -> None:
    (helper,) = children() - before
    os.kill(helper, signal.SIGKILL)


def test_the_helper_is_killed(a_root: Path) -> None:
    """Its files stay, and an error reports them. The next helper there removes them."""
    with in_root(a_root) as process:
        before = children()
        with (
            pytest.raises(NotRemoved, match="was killed") as caught,
            placed(process, {"a": b"1"}) as (path, _),
        ):
            kill_helper(before)
        assert path in str(caught.value)
        left = {"tmp", path[1:], f"{path[1:]}/a"}
        assert everything(a_root) == left
        (a_root / path[1:] / "begun").symlink_to("/etc")
        with placed(process, {"b": b"1"}) as (new, _):
            assert everything(a_root) == {"tmp", new[1:], f"{new[1:]}/b"}
        assert everything(a_root) == {"tmp"}


def test_an_error_of_the_block_takes_precedence_over_the_helpers(a_root: Path) -> None:
    with in_root(a_root) as process:
        before = children()
        with pytest.raises(KeyError), placed(process, {"a": b"1"}):
            raise KeyError(kill_helper(before))


def test_directories_that_are_not_stale(a_root: Path) -> None:
    """A directory of another user, a link, or a directory of another name is left
    alone."""
    tmp = a_root / "tmp"
    foreign = tmp / f".rbtrace-{0:016x}"
    foreign.mkdir(0o777)
    (foreign / "file").touch()
    (tmp / f".rbtrace-{1:016x}").symlink_to("/tmp/mine")
    (tmp / f".rbtrace-{2:016x}").touch()
    os.mkfifo(tmp / f".rbtrace-{3:016x}")
    for name in ("mine", f".rbtrace-{4:016x}0", f"rbtrace-{5:016x}"):
        (tmp / name).mkdir()
        (tmp / name / "file").touch()
    for path in tmp.iterdir():
        if path != foreign:
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    before = everything(a_root)
    with in_root(a_root) as process:
        with placed(process, {"a": b"1"}) as (path, _):
            assert everything(a_root) == {*before, path[1:], f"{path[1:]}/a"}
        assert everything(a_root) == before


def test_anothers_target_without_root(a_root: Path) -> None:
    """The request comes from a user without the rights."""
    script = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).resolve().parents[3] / "tracer")!r})
from rbtrace_py.agent.files import placed
from rbtrace_py.errors import NotPermitted
from rbtrace_py.linux.process import Process
process = Process(int(sys.argv[1]))
os.setresuid(1234, 1234, 1234)
try:
    with placed(process, {{"a": b"1"}}):
        pass
except NotPermitted as error:
    print(error.exit_code, bool(error.hint))
"""
    with in_root(a_root) as process:
        command = [sys.executable, "-c", script, str(process.pid)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
        assert done.stdout == "3 True\n", done.stderr


def test_names_are_names(a_root: Path) -> None:
    with in_root(a_root) as process:
        for name in ("", ".", "..", "a/b", "/etc/passwd"):
            with (
                pytest.raises(ValueError, match="not a file name"),
                placed(process, {name: b""}),
            ):
                pass


def test_one_that_has_ended(a_root: Path) -> None:
    with in_root(a_root) as process:
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(TIMEOUT)
        with pytest.raises((NoSuchTarget, NotPermitted)), placed(process, {}):
            pass


@pytest.mark.parametrize("ruby", [*map(rubies.chroot, ["2.7", "3.4"])])
def test_loaded_by_a_ruby_in_another_mount_namespace(ruby: str, bell: Bell) -> None:
    """The whole path: the file, the code that loads it, and its answer."""
    source = bell.code.replace(b"::Thread.start", b"::Thread.new")
    with injected("ruby", ruby=ruby) as target, Process(target.pid) as process:
        with placed(process, {"agent.rb": source}) as (path, _):
            code = f'::Thread.start {{ ::Kernel.load "{path}/agent.rb" }}'.encode()
            inject(process, ruby_addresses(process), code, bell.has_rung, 30)
        found = Path(f"/proc/{target.pid}/root{path}")
        assert not found.exists()
        assert target.end() == "right"


INTERRUPTED = """
import os, signal
from rbtrace_py.agent.files import placed
from rbtrace_py.linux.process import Process
def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
os.register_at_fork(after_in_parent=interrupt)
with Process(os.getpid()) as process:
    try:
        with placed(process, {"agent.rb": b"1"}):
            print("not interrupted")
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_a_signal_within_a_hook_of_fork() -> None:
    """Python ignores what such a hook raises."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True
    )
    assert (done.stdout, done.returncode) == ("interrupted\n", 0), done.stderr
