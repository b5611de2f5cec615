"""Draw the pictures of README and docs by running rbtrace-py on an example.

Run as root, with the virtual environment's Python. Writes docs/pictures/*.svg.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.text import Text

from rbtrace_py.aggregate.top import Picture as TopPicture
from rbtrace_py.report.style import Style
from rbtrace_py.report.terminal.top import TopView
from rbtrace_py.report.terminal.top_screen import screen_lines
from rbtrace_py.session.drive import drive
from rbtrace_py.session.limits import Limits
from rbtrace_py.session.stacks.sampling import Sampling
from rbtrace_py.session.stacks.sampling_options import SamplingOptions
from rbtrace_py.session.stacks.sampling_passes import SamplingPasses
from rbtrace_py.session.stacks.top import Top
from rbtrace_py.session.targets.targets import Targets

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
TRACER = ROOT / ".venv" / "bin" / "rbtrace-py"
COLUMNS, ROWS = 88, 22
RATE = 499
SECONDS = 6


@contextmanager
def example(name: str) -> Iterator[int]:
    """Start an example, and yield its PID."""
    words = ["ruby", "-Iruby/lib", f"examples/{name}.rb"]
    with subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            while process.stdout.readline() != "ready\n":
                assert process.poll() is None
            yield process.pid
        finally:
            process.kill()


def top(pid: int) -> str:
    """Return the screen of ``top`` as an SVG."""
    with Sampling(Targets.from_pids([pid]), SamplingOptions(rate=RATE)) as sampling:
        seen = Top(sampling, kept=SECONDS)
        pictures: list[TopPicture] = []
        drive(
            SamplingPasses(sampling, seen.add),
            Limits(duration=SECONDS, interval=1),
            on_interval=lambda: pictures.append(seen.end_interval()),
        )
    style = Style(colour=True, width=COLUMNS)
    lines = screen_lines(pictures[SECONDS - 2], TopView(), COLUMNS, ROWS, style)
    return terminal("\n".join(lines), "rbtrace-py top --ps shop.rb")


def dump(pid: int, title: str) -> str:
    """Return the terminal output of ``dump`` as an SVG."""
    environment = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(COLUMNS)}
    words = [str(TRACER), "dump", str(pid)]
    return terminal(subprocess.check_output(words, text=True, env=environment), title)


def terminal(said: str, title: str) -> str:
    """Return a picture of a terminal as an SVG."""
    console = Console(record=True, file=io.StringIO(), width=COLUMNS)
    console.print(Text.from_ansi(said))
    drawn = console.export_svg(title=title).replace(f"{ROOT}/", "")
    return re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)  # no web fonts


def flame_graph(name: str, command: str, pid: int, *options: str) -> None:
    """Run a command that draws a flame graph; its last option takes the file."""
    output = PICTURES / f"{name}.svg"
    limits = ("--duration", str(SECONDS), "--rate", str(RATE))
    words = [TRACER, command, str(pid), *limits, *options, output]
    subprocess.run(words, check=True)
    # The checkout's path is of no interest to readers.
    output.write_text(output.read_text().replace(f"{ROOT}/", ""))


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with example("shop/shop") as pid:
        (PICTURES / "top.svg").write_text(top(pid))
        flame_graph("flamegraph", "stacks", pid, "-o")
        slow = ("checkout", "--slower-than", "10ms", "--stacks")
        flame_graph("slow", "latency", pid, *slow)
        flame_graph("off-cpu", "stacks", pid, "--mode", "offcpu", "-o")
    with example("gvl") as pid:
        flame_graph("gvl", "stacks", pid, "--mode", "gvl", "-o")
    with example("stuck") as pid:
        stuck = dump(pid, "rbtrace-py dump --ps stuck.rb")
        (PICTURES / "stuck.svg").write_text(stuck)


if __name__ == "__main__":
    main()
