"""Reports of stacks, read by the tools that define the formats."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

import pytest

from rbtrace_py.aggregate.profile import Profile
from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.aggregate.stacks import StackCounts
from rbtrace_py.model.recording_meta import Meta
from rbtrace_py.report.exchange.rows import Folding
from rbtrace_py.report.formats import FORMATS
from rbtrace_py.report.sample_query import ReportOptions
from sample_makers import START, sample, shop

from .browser import Browser

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
SPEEDSCOPE = CACHE / "rbtrace-py" / "speedscope" / "package"
FLAMEGRAPH = Path("/usr/share/perl5/Devel/NYTProf/flamegraph.pl")
SCHEMA = Path("/usr/share/gocode/src/github.com/google/pprof/proto/profile.proto")

EVIL = ("a;b", "c d 5", "e\nf", "fn=(1) x", "日本", "g@/p/q r.rb:3")


def profile() -> Profile:
    statistics = Statistics(rate=100.0, started_ns=START, ended_ns=START + 10**9)
    counts = StackCounts(statistics).add_all(shop(40))
    counts.add(sample(*EVIL, weight=3))
    return Profile(counts, Meta(mode="wall", command="shop"))


def rendered(
    name: str, folding: Folding | None = None, of: Profile | None = None
) -> bytes:
    file = BytesIO()
    FORMATS[name].render(of or profile(), ReportOptions(folding or Folding()), file)
    return file.getvalue()


def needed(command: str) -> str:
    found = shutil.which(command)
    if found is None:
        pytest.skip(f"no {command}: scripts/setup.sh --test installs it")
    return found


# ------------------------------------------------------------------- folded


def test_flamegraph_pl_reads_folded(tmp_path: Path) -> None:
    if not FLAMEGRAPH.exists():
        pytest.skip("no flamegraph.pl: scripts/setup.sh --test installs it")
    path = tmp_path / "one.folded"
    path.write_bytes(rendered("folded"))
    done = subprocess.run(
        ["perl", FLAMEGRAPH, path], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    titles = re.findall(r'title="([^"]*)"|<title>([^<]*)</title>', done.stdout)
    shown = {one or two for one, two in titles}
    assert "Shop#serve /app/shop.rb (110 samples, 54.19%)" in shown
    assert "Order#total /app/order.rb (100 samples, 49.26%)" in shown
    assert "g /p/q r.rb (3 samples, 1.48%)" in shown
    assert "c d 5 (3 samples, 1.48%)" in shown


# --------------------------------------------------------------- speedscope


class _Rows(HTMLParser):
    """The texts of the rows of the page's tables."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append("")

    def handle_data(self, data: str) -> None:
        if self.rows:
            self.rows[-1] += data + " "


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    return Browser(tmp_path_factory.mktemp("browser"))


def speedscope_url(path: Path, view: str) -> str:
    """Return the URL to which its own command line tool sends a browser."""
    if not SPEEDSCOPE.is_dir():
        pytest.skip(f"no speedscope in {SPEEDSCOPE}: scripts/setup.sh --test, with npm")
    data = base64.b64encode(path.read_bytes()).decode()
    loader = path.with_suffix(".js")
    loader.write_text(
        f"speedscope.loadFileFromBase64({json.dumps(path.name)}, {json.dumps(data)})"
    )
    page = (SPEEDSCOPE / "dist" / "release" / "index.html").as_uri()
    return f"{page}#localProfilePath={quote(str(loader))}&view={view}"


@pytest.mark.slow
@pytest.mark.parametrize("lines", [False, True])
def test_speedscope_opens_ours(browser: Browser, tmp_path: Path, lines: bool) -> None:
    path = tmp_path / "one.speedscope.json"
    path.write_bytes(rendered("speedscope", Folding(lines=lines)))
    url = speedscope_url(path, "sandwich")
    page = browser.page(url, has="Order#total")
    parser = _Rows()
    parser.feed(page)
    rows = [" ".join(row.split()) for row in parser.rows]
    assert "[pid 4211] [worker 1, tid 4213]" in page
    assert "[pid 4211] [main, tid 4211]" in page
    assert "[pid 4300] [thread]" in page
    assert "80 (67%) 80 (67%) Order#total" in rows
    assert ("34 (28%) 34 (28%) fib" if lines else "40 (33%) 40 (33%) fib") in rows
    browser.picture(
        speedscope_url(path, "left-heavy"), tmp_path / "speedscope.png", (1200, 400)
    )


def test_speedscope_opens_our_folded_stacks(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "one.folded"
    path.write_bytes(rendered("folded"))
    parser = _Rows()
    parser.feed(browser.page(speedscope_url(path, "sandwich"), has="Order#total"))
    rows = [" ".join(row.split()) for row in parser.rows]
    assert any("Order#total /app/order.rb" in row and "100" in row for row in rows), (
        rows
    )


# -------------------------------------------------------------------- pprof


def decoded(data: bytes) -> str:
    protoc = needed("protoc")
    if not SCHEMA.exists():
        pytest.skip("no profile.proto: scripts/setup.sh --test installs it")
    done = subprocess.run(
        [
            protoc,
            "--decode=perftools.profiles.Profile",
            f"--proto_path={SCHEMA.parent}",
            SCHEMA.name,
        ],
        input=gzip.decompress(data),
        capture_output=True,
        check=True,
    )
    return done.stdout.decode()


def messages(text: str, name: str) -> list[str]:
    """Return the bodies of the outermost messages with a name."""
    return re.findall(rf"^{name} \{{\n(.*?)^\}}", text, re.MULTILINE | re.DOTALL)


def numbers(text: str, name: str) -> list[int]:
    return [int(n) for n in re.findall(rf"^ *{name}: (-?\d+)", text, re.MULTILINE)]


def strings(text: str) -> list[str]:
    """Return the strings of ``protoc``'s output, which escapes bytes as C does."""
    found = re.findall(r'^string_table: "(.*)"$', text, re.MULTILINE)
    return [
        s.encode("ascii").decode("unicode_escape").encode("latin-1").decode()
        for s in found
    ]


def test_pprof_is_what_the_published_schema_says() -> None:
    text = decoded(rendered("pprof"))
    # A field that is not in the schema would appear by its number.
    assert not re.search(r"^\s*\d+[:\s]", text, re.MULTILINE)
    table = strings(text)
    assert table[0] == ""
    assert "日本" in table
    types = [
        [table[number] for number in numbers(one, "type") + numbers(one, "unit")]
        for one in messages(text, "sample_type")
    ]
    assert types == [["samples", "count"], ["wall", "nanoseconds"]]
    assert numbers(text, "period") == [10_000_000]
    assert numbers(text, "time_nanos") == [START]
    assert numbers(text, "duration_nanos") == [10**9]
    functions = {
        numbers(one, "id")[0]: table[numbers(one, "name")[0]]
        for one in messages(text, "function")
    }
    locations = {
        numbers(one, "id")[0]: functions[numbers(one, "function_id")[0]]
        for one in messages(text, "location")
    }
    assert not any(numbers(one, "system_name") for one in messages(text, "function"))
    assert sorted(locations) == list(range(1, len(locations) + 1))
    found: dict[tuple[str, ...], int] = {}
    for one in messages(text, "sample"):
        stack = tuple(locations[number] for number in numbers(one, "location_id"))
        count, nanoseconds = numbers(one, "value")
        assert nanoseconds == count * 10_000_000
        found[stack] = found.get(stack, 0) + count
    assert found["Order#total", "Shop#serve", "<main>"] == 100
    assert found["Kernel#sleep", "<main>"] == 40
    assert found["g", "日本", "fn=(1) x", "e?f", "c d 5", "a,b"] == 3
    assert sum(found.values()) == 203


@pytest.mark.parametrize("unit", ["events", "weight"])
def test_pprof_of_events_has_no_time(unit: str) -> None:
    counts = StackCounts(Statistics(unit, 99.0)).add_all([sample("a@/x.rb:1")])
    text = decoded(rendered("pprof", of=Profile(counts)))
    table = strings(text)
    (kind,) = messages(text, "sample_type")
    (period_type,) = messages(text, "period_type")
    names = [table[n] for n in numbers(kind, "type") + numbers(kind, "unit")]
    assert (names, period_type) == ([unit, "count"], kind)
    (one,) = messages(text, "sample")
    assert numbers(one, "value") == [1]
    default = numbers(text, "default_sample_type")
    assert [table[number] for number in default] == [unit]


def test_pprof_has_the_kernel_in_a_mapping_of_its_own() -> None:
    one = sample("a@/x.rb:1", "c!IO#read", "k!vfs_read_[k]")
    counts = StackCounts().add_all([one])
    text = decoded(rendered("pprof", of=Profile(counts)))
    table = strings(text)
    files = {
        numbers(one, "id")[0]: table[numbers(one, "filename")[0]]
        for one in messages(text, "mapping")
    }
    of_frames = [
        files[numbers(one, "mapping_id")[0]] for one in messages(text, "location")
    ]
    assert of_frames == ["[kernel.kallsyms]", "ruby", "ruby"]


def test_pprof_labels_say_which_thread() -> None:
    text = decoded(rendered("pprof"))
    table = strings(text)
    seen = set()
    for one in messages(text, "sample"):
        for label in re.findall(r"^  label \{\n(.*?)^  \}", one, re.M | re.S):
            texts = [table[n] for n in numbers(label, "key") + numbers(label, "str")]
            seen.add(" ".join([*texts, *map(str, numbers(label, "num"))]))
    assert seen == {
        "pid 4211",
        "pid 4300",
        "tid 4211",
        "tid 4213",
        "thread main",
        "thread worker 1",
        "state running",
        "state waiting",
        "state sleeping",
    }


# ---------------------------------------------------------------- callgrind


def test_callgrind_annotate_agrees_with_the_summary(tmp_path: Path) -> None:
    path = tmp_path / "one.callgrind"
    path.write_bytes(rendered("callgrind"))
    command = [needed("callgrind_annotate"), "--threshold=100"]
    for option, column in (("no", 1), ("yes", 2)):
        done = subprocess.run(
            [*command, f"--inclusive={option}", path],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        shown = {
            name: int(count.replace(",", ""))
            for count, name in re.findall(
                r"^ *([\d,]+) \( *[\d.]+%\)  (.*)$", done.stdout, re.MULTILINE
            )
        }
        assert shown.pop("PROGRAM TOTALS") == 203
        wanted = {}
        for share in profile().counts.by_method():
            has_file = share.frame.path and not share.frame.kind
            name = share.frame.name.replace(";", ",").replace("\n", "?")
            wanted[f"{share.frame.path if has_file else '???'}:{name}"] = share[column]
        assert shown == {name: cost for name, cost in wanted.items() if cost}
