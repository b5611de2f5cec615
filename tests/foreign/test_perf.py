"""perf on an image that is kept as a file."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .tools import DEADLINE, Target, need, need_root, run

pytestmark = pytest.mark.root


class Perf:
    def __init__(self, home: Path) -> None:
        self.tool = need("perf")
        self.home = home

    def run(self, *arguments: str) -> str:
        # perf keeps its cache of build-ids there.
        return run(self.tool, *arguments, HOME=str(self.home), LC_ALL="C")


@pytest.fixture
def perf(tmp_path: Path) -> Iterator[Perf]:
    need_root()
    home = tmp_path / "home"
    home.mkdir()
    perf = Perf(home)
    try:
        perf.run("--version")
    except AssertionError:
        pytest.skip("perf does not match this kernel")
    yield perf
    subprocess.run(
        [perf.tool, "probe", "-q", "-d", "sdt_shop:*"], capture_output=True, check=False
    )


@pytest.fixture
def image(tmp_path: Path, start: Callable[..., Target]) -> Iterator[tuple[Target, str]]:
    folder = tmp_path / "images"
    folder.mkdir()
    target = start(TRACEPOINT_IMAGE_DIR=str(folder))
    target.tell("define shop checkout 3")
    target.tell("define shop twelve 12")
    (file,) = folder.iterdir()
    yield target, str(file)
    target.close()
    assert list(folder.iterdir()) == []


def record(perf: Perf, target: Target, shots: int) -> str:
    """Return the output of perf script for ``count`` shots of checkout."""
    control, tell = os.pipe()
    listen, acknowledge = os.pipe()
    data = str(perf.home / "perf.data")
    recording = subprocess.Popen(
        [
            *(perf.tool, "record", "-q", "-o", data, "-e", "sdt_shop:checkout"),
            *("-p", str(target.pid), "-D", "-1"),
            *("--control", f"fd:{control},{acknowledge}"),
        ],
        pass_fds=(control, acknowledge),
        env={**os.environ, "HOME": str(perf.home)},
    )
    os.write(tell, b"enable\n")
    assert b"ack" in os.read(listen, 16)
    target.tell(f"fire checkout {shots}")
    os.write(tell, b"stop\n")
    recording.wait(DEADLINE)
    for number in (control, tell, listen, acknowledge):
        os.close(number)
    return perf.run("script", "-i", data, "-F", "event,trace")


def test_list(perf: Perf, image: tuple[Target, str]) -> None:
    perf.run("buildid-cache", "--add", image[1])
    assert re.findall(r"sdt_shop:\w+", perf.run("list", "sdt")) == [
        "sdt_shop:checkout",
        "sdt_shop:twelve",
    ]


def test_record(perf: Perf, image: tuple[Target, str]) -> None:
    target, file = image
    perf.run("buildid-cache", "--add", file)
    perf.run("probe", "-q", "-x", file, "sdt_shop:checkout")
    output = record(perf, target, 3)
    assert re.findall(r"arg1=(\d+) arg2=(\d+) arg3=(\d+)", output) == [
        ("1000", "2000", "3000"),
        ("1001", "2001", "3001"),
        ("1002", "2002", "3002"),
    ]
