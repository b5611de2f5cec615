"""examples/rails with Sidekiq: counts equal those in the application's own log."""

from __future__ import annotations

import json
import re
import time
from collections import Counter

import pytest
from rails import THREADS, RailsExample, in_threads

from commands import answer, by_key

pytestmark = pytest.mark.slow

SQL = re.compile(
    r"^(?:\[.*\] )?  (CACHE )?(\S.*?)? ?\(\d+\.\d+ms\)  (.*?)(?:  \[\[.*)?$"
)
PLACEHOLDERS = re.compile(r"(IN|VALUES) \(\?(?:, \?)*\)")


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    shop = RailsExample(tmp_path_factory.mktemp("shop"))
    # One-time work of a worker's first requests is not counted here.
    in_threads(lambda _: [shop.get() for _ in range(10)])
    in_threads(lambda _: [order(shop, 1, 2) for _ in range(3)])
    shop.await_jobs(THREADS * 3 * 2)
    yield shop
    shop.close()


class Log:
    """The lines that the application has logged since this object was created."""

    def __init__(self, shop):
        self._path = shop.log
        self._size = self._path.stat().st_size

    def lines(self):
        return self._path.read_bytes()[self._size :].decode().splitlines()

    def count(self, pattern):
        found = [re.search(pattern, line) for line in self.lines()]
        return Counter(match[1] for match in found if match)

    def queries(self):
        """Return the counts of (name, statement, whether the query cache answered)."""
        found = [match for line in self.lines() if (match := SQL.match(line))]
        return Counter(
            (match[2], PLACEHOLDERS.sub(r"\1 (?)", match[3]), bool(match[1]))
            for match in found
        )


def order(shop, item, count):
    """Send one request, which creates one job, or two for orders of more than one
    item."""
    assert shop.ask("POST", "/orders", item_id=item, count=count) == 201


def visit(shop, thread):
    """Send 24 requests, of every kind, which create 7 jobs."""
    shop.get("/reports")
    for number in range(5):
        assert shop.ask("GET", "/items") == 200
        assert shop.ask("GET", f"/items/{number + 1}") == 200
        assert shop.ask("GET", f"/items/{900 + number}") == 404
        order(shop, thread + 1, number % 2 + 1)
    for _ in range(3):
        assert shop.ask("POST", "/orders", item_id=1, count=-1) == 500


def visit_in_threads(shop):
    """Send 72 requests, and wait for the 21 jobs to finish."""
    jobs = shop.finished_jobs()
    in_threads(lambda thread: visit(shop, thread))
    shop.await_jobs(jobs + THREADS * 7)


@pytest.fixture
def counts(shop, trace):
    """Trace during visits in three threads. Return the counts by key of each
    command, and the log."""

    def run(*commands):
        log = Log(shop)
        tracers = [
            trace(verb, shop.pid, "--subprocesses", *words, "--json")
            for verb, *words in commands
        ]
        visit_in_threads(shop)
        documents = [answer(tracer) for tracer in tracers]
        assert all(document["lost"] == 0 for document in documents)
        return [by_key(document) for document in documents], log

    return run


def some(counter):
    return {key: count for key, count in counter.items() if count}


def summed(queries, of):
    total = Counter()
    for query, count in queries.items():
        total[of(*query)] += count
    return total


def test_requests(counts):
    """Latency by status, and by route for requests that have one."""
    (by_status, by_route, by_method, slow), log = counts(
        ("latency", "rack:request", "--by", "status"),
        ("latency", "rack:request", "--by", "route"),
        ("count", "rack:request__begin", "--by", "method"),
        ("latency", "rack:request", "--by", "route", "--filter", "status == 500"),
    )
    assert by_status == {
        int(status): count for status, count in log.count(r"^Completed (\d+)").items()
    }
    assert by_status == {200: 33, 404: 15, 201: 15, 500: 9}
    actions = log.count(r"^Processing by (\w+#\w+)")
    assert by_route == {
        action.replace("Controller", "").lower(): count
        for action, count in actions.items()
    }
    assert by_method == log.count(r"^Started (\w+)")
    assert slow == {"orders#create": 9}


def test_actions(counts):
    (by_action, by_controller), log = counts(
        ("latency", "action_controller:process_action", "--by", "action"),
        ("count", "action_controller:process_action", "--by", "controller"),
    )
    assert by_action == log.count(r"^Processing by \w+#(\w+)")
    assert by_controller == log.count(r"^Processing by (\w+)#")


def test_sql(counts):
    """The log omits the schema queries of a new connection."""
    logged = 'not (name == "SCHEMA")'
    statements = ("active_record:sql", "--by", "statement", "--filter")
    (by_statement, cached, by_name), log = counts(
        ("latency", *statements, f"{logged} and not cached"),
        ("count", *statements, "cached"),
        ("count", "active_record:sql", "--by", "name", "--filter", logged),
    )
    queries = log.queries()
    not_cached = Counter({q: n for q, n in queries.items() if not q[2]})
    assert by_statement == summed(not_cached, lambda _, statement, __: statement)
    # Rails 7.1 added RETURNING.
    insert = 'INSERT INTO "orders" ("item_id", "count") VALUES (?)'
    assert sum(n for s, n in by_statement.items() if s.startswith(insert)) == 15
    assert cached == summed(queries - not_cached, lambda _, statement, __: statement)
    assert sum(cached.values()) == 15
    assert by_name == summed(queries, lambda name, _, __: name)


def test_views(counts):
    (templates, collections), log = counts(
        ("latency", "action_view:render_template", "--by", "template"),
        ("values", "action_view:render_collection", "count"),
    )
    assert templates == log.count(r"^  Rendered (views/\S+) \(")
    assert templates == {
        "views/items/index.html.erb": 15,
        "views/items/show.html.erb": 15,
    }
    assert sum(collections.values()) == sum(
        log.count(r"^  Rendered collection of (\S+)").values()
    )


def test_jobs(counts):
    """Sidekiq's jobs by class, the pushed jobs, and the waits by queue."""
    (jobs, active_jobs, pushed, waits, failed), log = counts(
        ("latency", "sidekiq:perform", "--by", "job"),
        ("latency", "active_job:perform", "--by", "job"),
        ("count", "sidekiq:push", "--by", "job"),
        ("values", "sidekiq:perform", "queued_ns", "--by", "queue"),
        ("count", "sidekiq:perform", "--filter", "outcome != 0 or retries > 0"),
    )
    assert jobs == log.count(r"Performed (\w+) \(")
    assert jobs == {"ReceiptJob": 15, "RestockJob": 6}
    assert active_jobs == jobs
    assert pushed == log.count(r"Enqueued (\w+) \(")
    assert waits == log.count(r"Performing .* from Sidekiq\((\w+)\)")
    assert waits == {"default": 15, "stock": 6}
    assert not some(failed)


def test_time_in_the_queue(shop, trace):
    """It is the time from the header's to the request's begin, in each form of the
    header."""
    log = Log(shop)
    words = ("rack:request__begin", "--subprocesses", "--json")
    tracer = trace("trace", shop.pid, *words)
    sent = {}
    for number, (digits, start) in enumerate(
        [(3, "t={0}.{1:03}"), (3, "{0}{1:03}"), (6, "t={0}{1:06}"), (6, "{0}.{1:06}")]
    ):
        before = time.time_ns()
        unit = 10 ** (9 - digits)
        header = start.format(*divmod(before // unit, 10**digits))
        shop.ask("GET", f"/items/{number + 1}", {"X-Request-Start": header})
        began = before // unit * unit
        sent[f"/items/{number + 1}"] = range(before - began, time.time_ns() - began)
    shop.get()
    out, err, code = tracer.finish()
    assert code == 0, err
    events = [json.loads(line) for line in out.splitlines()]
    seen = [e["arguments"] for e in events if "arguments" in e]
    waited = {arguments["path"]: arguments["queued_ns"] for arguments in seen}
    assert Counter(a["path"] for a in seen) == log.count(r'^Started GET "(.*?)"')
    assert waited.pop("/items") is None
    assert all(waited[path] in times for path, times in sent.items())


def test_stacks_of_slow_requests(shop, trace, tmp_path):
    """Only slow requests have stacks.

    On a busy machine, other requests may be slow while they wait for a CPU or the GVL.
    """
    log = Log(shop)
    folded = tmp_path / "slow.folded"
    words = ("rack:request", "--slower-than", "1s", "--stacks", folded)
    every = ("--exemplars", 100)
    tracer = trace("latency", shop.pid, "--subprocesses", *words, *every, "--json")
    visit_in_threads(shop)
    slow = answer(tracer)["slow"]
    times = log.count(r"^Completed .* in (\d+)ms")
    # The logged time is part of the span's.
    assert slow["count"] >= sum(n for ms, n in times.items() if int(ms) >= 1000)
    delayed = [span for span in slow["exemplars"] if not is_report(span)]
    assert len(slow["exemplars"]) == slow["count"]
    reports = [span for span in slow["exemplars"] if is_report(span)]
    assert len(reports) == THREADS
    assert {max(span["parts"], key=span["parts"].get) for span in reports} == {"sleep"}
    for span in delayed:
        waited = Counter(span["parts"])
        assert 2 * (waited["run queue"] + waited["GVL"]) > span["duration_ns"], span
    controllers = set(re.findall(r"\b[A-Z]\w+Controller#\w+", folded.read_text()))
    of_reports = {"ReportsController#index", "ReportsController#ask_the_warehouse"}
    assert controllers >= of_reports
    assert delayed or controllers == of_reports


def is_report(span):
    return span["arguments"]["route"] == "reports#index"
