"""Our flame graphs in Chromium: drawn, searched, zoomed, turned, by mouse and keys."""

from __future__ import annotations

import re
import struct
import xml.dom.minidom
import zlib
from pathlib import Path

import pytest

from rbtrace_py.aggregate.profile import Profile
from rbtrace_py.aggregate.stacks import StackCounts
from rbtrace_py.model.recording_meta import Meta
from rbtrace_py.report.exchange.rows import Folding
from rbtrace_py.report.flamegraph.svg import difference_pieces, flamegraph_pieces
from rbtrace_py.report.sample_query import ReportOptions
from sample_makers import sample, shop

from .browser import Browser

pytestmark = pytest.mark.slow

HELPERS = """
const all = () => [...document.querySelectorAll('.frames g')];
const about = g => g.querySelector('title').textContent;
const names = () => all().map(about);
const frame = name => all().find(g => about(g).startsWith(name));
const size = name => Number(frame(name).querySelector('rect').getAttribute('width'));
const y = name => Number(frame(name).querySelector('rect').getAttribute('y'));
const click = target =>
  target.dispatchEvent(new MouseEvent('click', {bubbles: true}));
const press = (key, target) => (target || document.activeElement || document
  .documentElement).dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
const button = name => document.querySelector('.' + name);
const search = text => {
  button('search').value = text;
  button('search').dispatchEvent(new Event('input'));
};
const found = () => all().filter(g => g.classList.contains('found')).map(about);
const matched = () => document.querySelector('.matched').textContent;
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    return Browser(tmp_path_factory.mktemp("browser"))


def svg(counts: StackCounts, folding: Folding | None = None, title: str = "") -> str:
    options = ReportOptions(folding or Folding(), title)
    return "".join(flamegraph_pieces(Profile(counts, Meta(command="shop")), options))


@pytest.fixture(scope="module")
def graph() -> str:
    return svg(StackCounts().add_all(shop(40)))


def run(browser: Browser, graph: str, script: str, *options: str) -> object:
    return browser.drive(graph, HELPERS + script, *options)


def test_the_file_and_the_script_draw_the_same(browser: Browser, graph: str) -> None:
    """Without a script (as a picture in a page), it looks as with one."""
    wanted = [
        (
            text.firstChild.data,
            rect.getAttribute("fill"),
            round(float(rect.getAttribute("width"))),
            rect.getAttribute("y"),
        )
        for group in xml.dom.minidom.parseString(graph).getElementsByTagName("g")[1:]
        for text, rect in [
            (
                group.getElementsByTagName("title")[0],
                group.getElementsByTagName("rect")[0],
            )
        ]
    ]
    drawn = run(
        browser,
        graph,
        """return all().map(g => {
          const rect = g.querySelector('rect');
          return [about(g), rect.getAttribute('fill'),
            Math.round(rect.getAttribute('width')), rect.getAttribute('y')];
        });""",
        "--window-size=1201,500",
    )
    assert drawn == [list(one) for one in wanted]
    assert wanted[0][0] == "all (200 samples, 100.00 %)"
    assert len(wanted) == 14


def test_zoom_and_reset(browser: Browser, graph: str) -> None:
    before, zoomed, shown, after, details = run(
        browser,
        graph,
        """
        const before = size('Shop#serve');
        click(frame('Shop#serve'));
        const zoomed = size('Shop#serve');
        const shown = names();
        const details = document.querySelector('.details').textContent;
        click(button('reset'));
        return [before, zoomed, shown, size('Shop#serve'), details];
        """,
    )
    assert before == after < zoomed
    assert shown == [
        "all (200 samples, 100.00 %)",
        "<main> /app/shop.rb (160 samples, 80.00 %)",
        "Shop#serve /app/shop.rb (110 samples, 55.00 %)",
        "Array#sum /app/shop.rb (10 samples, 5.00 %)",
        "Order#total /app/order.rb (100 samples, 50.00 %)",
    ]
    assert details == shown[2]


def test_search(browser: Browser, graph: str) -> None:
    """A match within a match is not counted twice."""
    result = run(
        browser,
        graph,
        """
        const seen = [];
        for (const text of ['^fib', 'total|sum', 'SHOP#', 'nothing', '(', '']) {
          search(text);
          seen.push([found().length, matched()]);
        }
        return seen;
        """,
    )
    assert result == [
        [7, "matched 20.00 %"],
        [2, "matched 55.00 %"],
        [1, "matched 55.00 %"],
        [0, "matched 0.00 %"],
        [0, "not a regular expression"],
        [0, ""],
    ]


def test_flip(browser: Browser, graph: str) -> None:
    before, after = run(
        browser,
        graph,
        """
        const before = y('Shop#serve') - y('all');
        click(button('flip'));
        return [before, y('Shop#serve') - y('all')];
        """,
    )
    assert before == -after == 34


def test_reverse(browser: Browser, graph: str) -> None:
    reversed_, back = run(
        browser,
        graph,
        """
        click(button('reverse'));
        const top = y('all') + 17;
        const shown = all().filter(
          g => Number(g.querySelector('rect').getAttribute('y')) === top).map(about);
        click(button('reverse'));
        return [shown, names().length];
        """,
    )
    assert reversed_ == [
        "(garbage collection) (10 samples, 5.00 %)",
        "Array#sum /app/shop.rb (10 samples, 5.00 %)",
        "Kernel#sleep /app/shop.rb (40 samples, 20.00 %)",
        "Order#total /app/order.rb (100 samples, 50.00 %)",
        "fib /app/fib.rb (40 samples, 20.00 %)",
    ]
    assert back == 14


def test_what_the_script_reverses_is_what_the_report_reverses(
    browser: Browser, graph: str
) -> None:
    made = svg(StackCounts().add_all(shop(40)), Folding(reverse=True))
    size = "--window-size=1201,500"
    ours = run(browser, made, "return names();", size)
    theirs = run(browser, graph, "click(button('reverse')); return names();", size)
    assert ours == theirs


def test_keys(browser: Browser, graph: str) -> None:
    walked = run(
        browser,
        graph,
        """
        frame('all').focus();
        const seen = [];
        const look = () => seen.push(document.activeElement.getAttribute('aria-label')
          || document.activeElement.className);
        for (const key of ['ArrowDown', 'ArrowDown', 'ArrowLeft', 'ArrowRight',
          'ArrowUp', 'ArrowDown', 'Enter']) { press(key); look(); }
        seen.push(names().length);
        press('Escape');
        seen.push(names().length);
        press('/');
        seen.push(document.activeElement === button('search'));
        return seen.map(word => String(word).split(' ')[0]);
        """,
    )
    assert walked == [
        "<main>",
        "Shop#serve",
        "Kernel#sleep",
        "Shop#serve",
        "<main>",
        "Shop#serve",
        "Shop#serve",
        "5",
        "14",
        "true",
    ]


def test_hostile_names_are_texts(browser: Browser) -> None:
    evil = [
        "</script><script>document.documentElement.setAttribute('data-evil', 1)",
        "]]><script>document.documentElement.setAttribute('data-evil', 2)</script>",
        "<img src=x onerror=alert(1)>",
        "&amp; \" ' \\u003c \u202e \x1b[2J \0",
        "日本語のメソッド",
    ]
    counts = StackCounts().add_all(sample(*evil) for _ in range(2))
    graph = svg(counts, title="<b>&\x07")
    xml.dom.minidom.parseString(graph)
    shown, wrong = run(
        browser,
        graph,
        "return [names(), document.documentElement.hasAttribute('data-evil')];",
    )
    assert not wrong
    # "!" and "@" mean something to the makers of samples, and are in none of these.
    assert shown[1].startswith(evil[0].replace(";", ","))
    assert shown[5].startswith(evil[4])
    assert "?[2J" in shown[4]


def test_the_graph_loads_nothing_from_elsewhere(graph: str) -> None:
    addresses = set(re.findall(r"""https?://[^"'\s<]+""", graph))
    assert addresses == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml"}
    assert not re.search(r"@import|url\(|xlink|<link|src=", graph)


def test_what_is_too_narrow_is_counted(browser: Browser) -> None:
    counts = StackCounts()
    counts.add(sample("wide", weight=1_000_000))
    counts.add_all(sample("narrow", f"n{number}") for number in range(50))
    graph = svg(counts)
    drawn = run(
        browser,
        graph,
        """return [names().length, document.querySelector('.narrow').textContent,
          (search('^n'), matched())];""",
    )
    words = "51 frames are too narrow to be drawn"
    assert drawn == [2, words, "matched 0.00 %"]
    assert words in graph


def test_a_graph_of_very_many_nodes(browser: Browser) -> None:
    """It is deep and wide: small frames are merged, and all are counted."""
    counts = StackCounts()
    for number in range(60_000):
        counts.add(sample(f"m{number % 300}", f"n{number}"))
    counts.add(sample(*["deep"] * 3000, weight=60_000))
    first, total, seconds = run(
        browser,
        svg(counts),
        """
        const start = performance.now();
        search('deep');
        return [names()[0], matched(), (performance.now() - start) / 1000];
        """,
    )
    assert first == "all (120,000 samples, 100.00 %)"
    assert total == "matched 50.00 %"
    assert seconds < 30


def test_a_difference(browser: Browser) -> None:
    before = StackCounts().add_all(
        [sample("main", "slow", weight=60), sample("main", "gone", weight=40)]
    )
    after = StackCounts().add_all(
        [sample("main", "slow", weight=30), sample("main", "new", weight=10)]
    )
    graph = "".join(difference_pieces(before, after, Folding()))
    shown, colours, has_reverse = run(
        browser,
        graph,
        """return [names(),
          all().map(g => g.querySelector('rect').getAttribute('fill')),
          Boolean(button('reverse'))];""",
    )
    assert shown == [
        "all (100.00 % → 100.00 %, +0.00)",
        "main (100.00 % → 100.00 %, +0.00)",
        "gone (40.00 % → 0.00 %, −40.00)",
        "new (0.00 % → 25.00 %, +25.00)",
        "slow (60.00 % → 75.00 %, +15.00)",
    ]
    blue, red = colours[2], colours[3]
    assert int(blue[1:3], 16) < int(blue[5:], 16)
    assert int(red[1:3], 16) > int(red[5:], 16)
    assert colours[0] == colours[1]
    assert not has_reverse
    assert "100 samples → 40 samples" in graph


# ------------------------------------------------------------------ colours


def pixels(path: Path) -> list[list[tuple[int, int, int]]]:
    """Return the rows of a PNG with 8 bits per channel, as Chromium writes them."""
    data = path.read_bytes()
    at, packed, width, channels = 8, b"", 0, 3
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        part = data[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            width, _, depth, colour = struct.unpack(">IIBB", part[:10])
            assert depth == 8
            channels = {2: 3, 6: 4}[colour]
        elif kind == b"IDAT":
            packed += part
        at += size + 12
    return _unfiltered(zlib.decompress(packed), width, channels)


def _unfiltered(
    raw: bytes, width: int, channels: int
) -> list[list[tuple[int, int, int]]]:
    step = width * channels
    above = bytearray(step)
    rows = []
    for start in range(0, len(raw), step + 1):
        kind, line = raw[start], bytearray(raw[start + 1 : start + 1 + step])
        for i in range(step):
            left = line[i - channels] if i >= channels else 0
            corner = above[i - channels] if i >= channels else 0
            line[i] = (line[i] + _predicted(kind, left, above[i], corner)) & 0xFF
        above = line
        rows.append(
            [(line[i], line[i + 1], line[i + 2]) for i in range(0, step, channels)]
        )
    return rows


def _predicted(kind: int, left: int, up: int, corner: int) -> int:
    if kind != 4:
        return (0, left, up, (left + up) // 2)[kind]
    guess = left + up - corner
    return min((left, up, corner), key=lambda one: abs(guess - one))


def luminance(pixel: tuple[int, int, int]) -> float:
    """Relative luminance as WCAG defines it."""
    parts = [part / 255 for part in pixel]
    linear = [
        p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: float, two: float) -> float:
    return (max(one, two) + 0.05) / (min(one, two) + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_readable_on_white_and_dark(
    browser: Browser, graph: str, tmp_path: Path, dark: bool
) -> None:
    page = tmp_path / "graph.svg"
    page.write_text(graph, encoding="utf-8")
    shot = tmp_path / f"flamegraph-{'dark' if dark else 'light'}.png"
    browser.picture(page.as_uri(), shot, (900, 420), dark)
    rows = pixels(shot)
    behind = luminance(rows[410][5])
    assert luminance(rows[5][890]) == behind
    assert behind < 0.02 if dark else behind == 1.0
    title = [luminance(pixel) for row in rows[8:24] for pixel in row[8:200]]
    furthest = max(title, key=lambda one: contrast(one, behind))
    assert contrast(furthest, behind) > 7
    # Compare the text of each row of frames with its own rectangle.
    for top in (76, 93, 110):
        inside = [luminance(p) for row in rows[top + 2 : top + 15] for p in row[14:60]]
        assert contrast(max(inside), min(inside)) > 7
