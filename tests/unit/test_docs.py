"""The documents are true: generated pages, links, commands, Ruby."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest

import script_modules
from rbtrace_py.cli.main import COMMANDS, cli, split_command
from task_pages import TASK_PAGES

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "CONTRIBUTING")),
    ROOT / "CHANGELOG.md",
    ROOT / "examples" / "README.md",
]
COMMAND_PAGES = ROOT / "docs" / "commands"
COMMAND_LINE = re.compile(
    r"^(?:\$ )?(?:sudo )?(?:\.venv/bin/)?rbtrace-py\s(.*)", re.MULTILINE
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
README_LINES = 120
TASK_LINES = 250

each_page = pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: str(page.relative_to(ROOT))
)
each_command = pytest.mark.parametrize("name", list(COMMANDS))


def fences(page: Path, language: str | None = None) -> list[str]:
    """The code blocks of a page; of one language, or all."""
    found = FENCE.findall(page.read_text())
    return [text for kind, text in found if language in (None, kind)]


def prose(page: Path) -> str:
    """A page without its code."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))


# ---------------------------------------------------------- docs/commands


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    return script_modules.load("gen_cli_docs")


def test_the_reference_is_current(generator: ModuleType) -> None:
    """If not, run scripts/gen_cli_docs.py."""
    there = {page.name: page.read_text() for page in COMMAND_PAGES.glob("*.md")}
    assert there == generator.pages()


@each_command
def test_every_command_has_a_page(name: str) -> None:
    page = (COMMAND_PAGES / f"{name}.md").read_text()
    assert page.startswith(f"# rbtrace-py {name}\n")


# ----------------------------------------------------------- every command


def command(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


def examples(name: str) -> list[list[str]]:
    """The command lines of a command's help."""
    text = (command(name).help or "").partition("Examples:")[2]
    lines = (re.split(r"\s{3,}", line.strip())[0] for line in text.splitlines())
    return [words for line in lines if (words := own_words(line))]


def own_words(line: str) -> list[str]:
    """Return what a shell would hand to rbtrace-py; nothing if that is not called."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)
    while words and words[0] in ("$", "sudo"):
        words.pop(0)
    if not words or Path(words[0]).name != "rbtrace-py":
        return []
    ends = [i for i, word in enumerate(words) if set(word) <= set("|&;><")]
    return words[1 : ends[0] if ends else None]


def parse(words: list[str]) -> None:
    """Parse the words as click does; nothing is run."""
    before, _ = split_command(words)
    assert before, words
    if before[0].startswith("-"):
        assert before[0] in ("--help", "-h", "--version"), words
        return
    assert before[0] in COMMANDS, words
    try:
        with command(before[0]).make_context(before[0], before[1:]):
            pass
    except click.exceptions.Exit:
        pass  # --help


@each_command
def test_every_command_has_help_and_an_example(name: str) -> None:
    help_text = command(name).help or ""
    assert help_text.strip().splitlines()[0].endswith((".", ":"))
    assert "Examples:" in help_text
    assert f"rbtrace-py {name}" in help_text.partition("Examples:")[2]


@each_command
def test_examples_of_the_help_parse(name: str) -> None:
    for words in examples(name):
        parse(words)


# --------------------------------------------------------------- the pages


def command_lines() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        if page.parent == COMMAND_PAGES:
            continue
        for block in fences(page):
            for line in COMMAND_LINE.finditer(block.replace("\\\n", " ")):
                yield page.name, line[0]


@pytest.mark.parametrize(("page", "line"), sorted(set(command_lines())))
def test_commands_in_the_documents_parse(page: str, line: str) -> None:
    parse(own_words(line.partition(" #")[0]))


def test_the_readme_has_commands_to_parse() -> None:
    assert sum(page == "README.md" for page, _ in command_lines()) >= 8


def heading_anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    words = (re.sub(r"[`*]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", text).replace(" ", "-") for text in words}


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in heading_anchors(target)):
            broken.append(link)
    assert broken == []


@each_page
def test_ruby_in_the_documents_compiles(page: Path) -> None:
    ruby = shutil.which("ruby")
    if not ruby:
        pytest.skip("no ruby here")
    for block in fences(page, "ruby"):
        done = subprocess.run(
            [ruby, "-c"], input=block, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"{done.stderr}\n{block}"


def test_the_readme_can_be_read_at_a_sitting() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES


@pytest.mark.parametrize("name", TASK_PAGES)
def test_a_task_page_can_be_read_at_a_sitting(name: str) -> None:
    lines = (ROOT / "docs" / f"{name}.md").read_text().splitlines()
    assert len(lines) <= TASK_LINES


@each_page
def test_tables_and_pictures_fit(page: Path) -> None:
    """Output that is shown has the width the commands promise."""
    wide = [
        line
        for block in fences(page, "")
        for line in block.splitlines()
        if len(line) > 100
    ]
    assert wide == []


SOURCE_PATH = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|c|h|rb|sh)|[\w-]+/)`")
SOURCE_ROOTS = ["", "tracer/rbtrace_py", "ext/libstapsdt", "tests", "ruby"]


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "docs/internals.md"])
def test_files_that_are_named_exist(name: str) -> None:
    """A name without a folder is searched for everywhere."""
    files = [
        path
        for root in SOURCE_ROOTS[1:]
        for path in (ROOT / root).rglob("*")
        if path.suffix in (".py", ".c", ".h")
    ]
    missing = [
        path
        for path in SOURCE_PATH.findall((ROOT / name).read_text())
        if not any((ROOT / root / path).exists() for root in SOURCE_ROOTS)
        and not any(file.name == path for file in files)
    ]
    assert missing == []


# ------------------------------------------------------------------- words

BANNED = {
    "agreed": "confirmed",
    "agreement": "confirmation",
    "anew": "again",
    "cannot be undone": "irreversible",
    "do not go together": "cannot be combined",
    "errand": "task",
    "every so often": "every TIME",
    "goes before": "takes precedence over",
    "in silence": "silent",
    "looks a second": "samples per second",
    "nevertheless": "anyway",
    "nobody tells": "cannot trace: no agent",
    "one word too many": "too many arguments",
    "out of service": "stopped",
    "parked": "sleeping, idle",
    "rounds a second": "sampling passes per second",
    "Ruby's lock": "the GVL",
    "serves on": "keeps serving",
    "storey": "layer",
    "stranger": "non-Ruby process, untracked child, other process",
    "tells of": "reports",
    "truth value": "boolean",
    "what stands": "name the thing",
}
"""Private words and unclear phrases, with their replacements."""


def banned(text: str) -> list[str]:
    text = " ".join(text.split())
    pattern = "|".join(rf"\b{re.escape(words)}s?\b" for words in BANNED)
    return re.findall(pattern, text, re.IGNORECASE)


@each_page
def test_pages_use_the_terms_of_the_field(page: Path) -> None:
    """Only the newest release of the changelog: older entries stay as they are."""
    text = page.read_text()
    if page.name == "CHANGELOG.md":
        text = "\n## ".join(text.split("\n## ")[:3])
    assert banned(text) == []


def messages(path: Path) -> Iterator[str]:
    """Strings of a module that may reach a user: not docstrings, not Ruby code."""
    tree = ast.parse(path.read_text())
    docstrings = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or id(node) in docstrings:
            continue
        if isinstance(node.value, str) and "\nlambda" not in node.value:
            yield node.value


def test_messages_use_the_terms_of_the_field() -> None:
    package = ROOT / "tracer" / "rbtrace_py"
    found = {
        f"{path.relative_to(package)}: {text[:60]}": words
        for path in package.rglob("*.py")
        for text in messages(path)
        if (words := banned(text))
    }
    for folder in ("ruby/lib", "ext"):
        for path in [*(ROOT / folder).rglob("*.rb"), *(ROOT / folder).rglob("*.c")]:
            for text in re.findall(r'"((?:[^"\\\n]|\\.)*)"', path.read_text()):
                if words := banned(text):
                    found[f"{path.relative_to(ROOT)}: {text[:60]}"] = words
    assert found == {}
