"""The commands of the README and of the task pages, as a reader types them.

Each page runs from its first command to its last, with the programs that it starts. The
shown output must appear, with different numbers.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from desk import Desk, load_all
from rails import EXAMPLE, RailsExample

from commands import has_ruby_probes
from processes import ROOT, TIMEOUT
from task_pages import TASK_PAGES

pytestmark = pytest.mark.slow

RAILS_PAGES = ["README", "recipes"]
_OF_OTHER_PROGRAMS = {"frameworks", "method-spans", "recipes", "slow-spans", "spans"}
PAGES = ["README", *(page for page in TASK_PAGES if page not in _OF_OTHER_PROGRAMS)]
RAILS = r"sudo rbtrace-py .*'\^(puma|sidekiq)'|rbtrace-py report --diff before\.json"
NOT_RUN = {
    r"sudo make (demo|setup|test)\b": "test_demo.py runs the first",
    r"sudo apt-get ": "it changes the machine",
    r"sudo ln -s ": "it changes the machine",
    r"sudo setpriv ": "test_without_root.py does",
    r"python3 -m venv |venv/bin/pip ": "tests/install does, in an empty environment",
    r"cd gem$|gem (build|install) ": "tests/install does, in an empty GEM_HOME",
    r"rake -f gem/Rakefile compile": "make setup has done it",
    r"ruby -Iruby/lib -rtracepoint -e": "ruby/test/benchmark_test.rb does",
    r"ruby -Iruby/lib shop.rb$": "shows a checkout in which nothing was compiled",
    RAILS: "test_pages_about_rails does",
    r"sudo rbtrace-py .*(1234|puma)": "test_containers.py does",
    r"rbtrace-py attach 1234 --yes": "test_filters.py does",
    r"(sudo )?rm -rf ": "test_damaged_caches.py does, where it can harm nothing",
    r"sudo rbtrace-py .*gc__(obj_new|xmalloc)": "Ruby 4.1; test_ruby_probes.py does",
    r"docker ": "needs Docker; test_containers.py runs what it starts",
    r"kubectl ": "needs a cluster; test_containers.py runs what it starts",
    r"cat caps.json": "shows a file",
}
"""Lines that are not run, with the reason."""
FAILING = {'sku = "tea"': 2}
"""Commands that fail on a page, with their exit code."""
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FIRST_WORD = re.compile(r"sudo |rbtrace-py |ruby -|rake |python3 |cd |gem build ")
ENDLESS = {"calls", "count", "latency", "record", "stacks", "top", "trace", "values"}
CTRL_C = {"rbtrace": r"<\d"}
"""Commands that end only at Ctrl-C, with the output after which it is typed."""
TYPED = re.compile(r"\d+:\d+[>*] (.+)")


@dataclass
class Command:
    """A line that a reader types, and the output that the page shows below it."""

    line: str
    shown: list[str] = field(default_factory=list)

    @property
    def is_run(self) -> bool:
        return not any(re.match(pattern, self.line) for pattern in NOT_RUN)

    @property
    def is_about_rails(self) -> bool:
        return bool(re.match(RAILS, self.line))

    @property
    def words(self) -> list[str]:
        """Return the words that a shell passes, without sudo: tests run as root."""
        words = shlex.split(re.sub(r"\s# .*", "", self.line))
        return words[words[0] == "sudo" :]

    @property
    def files(self) -> list[str]:
        """Return the files that the command writes."""
        words = self.words
        named = itertools.pairwise(words)
        return [
            path
            for option, path in named
            if option in ("-o", "--record", "--hlog", "--stacks")
            and path != "/dev/null"
        ]

    @property
    def exit_code(self) -> int:
        return next((code for text, code in FAILING.items() if text in self.line), 0)


def commands(page: str) -> list[Command]:
    """Return the commands of a block: the lines after ``$``, or all lines without
    any ``$``."""
    path = ROOT / "README.md" if page == "README" else ROOT / "docs" / f"{page}.md"
    found: list[Command] = []
    blocks = (text for kind, text in FENCE.findall(path.read_text()) if not kind)
    for block in blocks:
        lines = block.replace("\\\n", " ").splitlines()
        if any(line.startswith("$ ") for line in lines):
            found += marked(lines)
        elif FIRST_WORD.match(lines[0]):
            found += [Command(line) for line in lines]
    return found


def marked(lines: list[str]) -> Iterator[Command]:
    command = None
    for line in [*lines, "$ "]:
        if line.startswith("$ "):
            if command:
                yield command
            command = Command(line.removeprefix("$ "))
        elif command:
            command.shown.append(line)


def is_run(page: str) -> bool:
    return any(command.is_run for command in commands(page))


def shorter(words: list[str], duration: str = "500ms") -> list[str]:
    """Return the words with a limit, so that the command ends soon."""
    at = words.index("--") if "--" in words else len(words)
    own, rest = words[:at], words[at:]
    limits = {"-d", "--duration", "-n", "--count", "-i", "--interval"} & {*own}
    for i, word in enumerate(own[:-1]):
        if word in ("-d", "--duration"):
            own[i + 1] = duration
        elif word in ("-i", "--interval"):
            own[i + 1] = "250ms"
    if words[0] in ENDLESS and limits <= {"-i", "--interval"}:
        own += ["-d", duration]
    return own + rest


# -------------------------------------------------------------------- output

REPLACED = {
    r"[▏▎▍▌▋▊▉█]+": "",
    r"0x[0-9a-f]+": "#",
    r"\brevision [0-9a-f]+": "revision #",
    r"\b(running|runnable|sleeping|waiting)\b": "state",
    r"[-−]?\d[\d.,:]*": "#",
    r"# (ns|µs|ms|s|MiB|KiB)(?![\w/])": "# T",
    r'"[^"]*"': '"…"',
    r"(?<=: ):\w+": ":…",
    r"\b(true|false)\b": "bool",
    r"\bwas\b": "were",
    r"\bhas\b": "have",
    r"(?<=^#)( #){1,3} [\w(][^ ]*.*": " … ",
    r"^# (?=Shop::)": "",
    "'": "",
}
"""Parts of the output that differ between runs, in the order of replacement. The
last but one is the thread number, which ``calls`` shows once it has seen two
threads.
"""


def shape(line: str) -> str:
    for pattern, text in REPLACED.items():
        line = " ".join(re.sub(pattern, text, line).split())
    return line


def unwrapped(lines: list[str]) -> list[str]:
    """Join messages: their wrapping depends on the digits of a PID."""
    text = re.sub(
        r"(?<=^rbtrace-py: )(.*\n  (?=\S))+.*", _joined, "\n".join(lines), flags=re.M
    )
    return text.splitlines()


def _joined(found: re.Match[str]) -> str:
    return " ".join(found[0].split())


def missing(command: Command, said: list[str]) -> list[str]:
    """Return the page's lines that are missing. ``…`` in a line stands for anything."""
    shown = command.shown
    if command.words[1] == "doctor":  # the result of a check depends on the machine
        shown = [re.sub(r"(?<=\S)\s{2,}.*", "…", line) for line in shown]
    shapes = [shape(line) for line in unwrapped(said)]
    return [
        line
        for line in unwrapped(shown)
        if not any(matches(line, one) for one in shapes) and not TYPED.match(line)
    ]


def matches(shown: str, line: str) -> bool:
    parts = map(re.escape, shape(shown).split("…"))
    return bool(re.fullmatch(".*".join(parts), line))


# --------------------------------------------------------------------- tests


@pytest.fixture(scope="module")
def warm() -> None:
    load_all()


@pytest.fixture(scope="module")
def is_shown() -> bool:
    """Return whether the output on the pages is from this machine's version of Ruby."""
    version = subprocess.run(["ruby", "-v"], capture_output=True, text=True, check=True)
    return version.stdout.startswith("ruby 3.1") and has_ruby_probes()


@pytest.fixture
def desk(root, tmp_path, warm) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("page", [page for page in PAGES if is_run(page)])
def test_a_page(page, desk, is_shown):
    for command in filter(lambda command: command.is_run, commands(page)):
        words = command.words
        if words[0] == "ruby":
            desk.start(words)
            continue
        assert words[0] == "rbtrace-py", command.line
        typed = [found[1] for line in command.shown if (found := TYPED.match(line))]
        until = CTRL_C.get(words[1], "")
        said, code = desk.run(shorter(words[1:]), typed, until)
        for copy in re.findall(r"process (\d+) is a copy", "\n".join(said)):
            os.kill(int(copy), signal.SIGKILL)
        print(f"$ {command.line}", *said, sep="\n")
        assert code == command.exit_code, command.line
        sizes = [desk.size_of(path) for path in command.files]
        assert all(sizes), command.line
        assert sizes or any(line.strip() for line in said), command.line
        if is_shown:
            assert missing(command, said) == [], command.line


@pytest.fixture(scope="module")
def visited(tmp_path_factory) -> Iterator[RailsExample]:
    """The Rails application, visited all the time."""
    shop = RailsExample(tmp_path_factory.mktemp("shop"))
    visitors = subprocess.Popen(
        ["ruby", EXAMPLE / "visit.rb"], env={**os.environ, "SHOP_URL": shop.url}
    )
    try:
        shop.await_jobs(1)
        yield shop
    finally:
        visitors.kill()
        visitors.wait(TIMEOUT)
        shop.close()


def test_pages_about_rails(desk, visited):
    """The commands' target is the parent of Puma and Sidekiq."""
    found = [command for page in RAILS_PAGES for command in commands(page)]
    for command in filter(lambda command: command.is_about_rails, found):
        words = [*command.words[1:]]
        if "--ps" in words:
            at = words.index("--ps")
            words[at : at + 2] = [str(visited.pid), "--subprocesses"]
        any_event = "--ps" in command.line and "--filter" not in words
        if any_event:  # on a busy machine, the first event may take its time
            words = [*shorter(words, f"{TIMEOUT}s"), "--count", "1"]
        else:
            words = shorter(words)
        said, code = desk.run(words, [])
        print(f"$ {command.line}", *said, sep="\n")
        assert code == 0, command.line
        assert all(desk.size_of(path) for path in command.files), command.line
        if any_event:
            counted = r"[1-9][\d,]* in [\d.]+ s\b"
            assert any(re.search(counted, line) for line in said), command.line


def test_every_exemption_is_used():
    lines = [command.line for page in PAGES for command in commands(page)]
    unused = [
        pattern
        for pattern in NOT_RUN
        if not any(re.match(pattern, line) for line in lines)
    ]
    assert unused == []
