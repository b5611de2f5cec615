"""examples/rails in two workers: counts are those of the application's own log."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from rails import RailsExample, in_threads

from commands import answer, by_key

SQL = re.compile(
    r"^(?:\[.*\] )?  (CACHE )?(\S.*?)? ?\(\d+\.\d+ms\)  (.*?)(?:  \[\[.*)?$"
)
PLACEHOLDERS = re.compile(r"(IN|VALUES) \(\?(?:, \?)*\)")


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    shop = RailsExample(tmp_path_factory.mktemp("shop"))
    # What a worker does once, at its first requests, is not what is counted here.
    in_threads(lambda _: [shop.get() for _ in range(10)])
    yield shop
    shop.close()


class Log:
    """What the application wrote since this was made."""

    def __init__(self, shop):
        self._path = shop.log
        self._size = self._path.stat().st_size

    def lines(self):
        return self._path.read_bytes()[self._size :].decode().splitlines()

    def count(self, pattern):
        found = [re.search(pattern, line) for line in self.lines()]
        return Counter(match[1] for match in found if match)

    def queries(self):
        """Return (name, statement, whether the query cache answered), counted."""
        found = [match for line in self.lines() if (match := SQL.match(line))]
        return Counter(
            (match[2], PLACEHOLDERS.sub(r"\1 (?)", match[3]), bool(match[1]))
            for match in found
        )


def visit(shop, thread):
    """23 requests, of every kind."""
    for number in range(5):
        assert shop.ask("GET", "/items") == 200
        assert shop.ask("GET", f"/items/{number + 1}") == 200
        assert shop.ask("GET", f"/items/{900 + number}") == 404
        assert shop.ask("POST", "/orders", item_id=thread + 1, count=2) == 201
    for _ in range(3):
        assert shop.ask("POST", "/orders", item_id=1, count=-1) == 500


@pytest.fixture
def counts(shop, trace):
    """Trace, visit in three threads; counts by key, a command each, and the log."""

    def run(*commands):
        log = Log(shop)
        tracers = [
            trace(verb, shop.pid, "--subprocesses", *words, "--json")
            for verb, *words in commands
        ]
        in_threads(lambda thread: visit(shop, thread))
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
    """Latency by status, and by route of those that found one."""
    (by_status, by_route, by_method, slow), log = counts(
        ("latency", "rack:request", "--by", "status"),
        ("latency", "rack:request", "--by", "route"),
        ("count", "rack:request__begin", "--by", "method"),
        ("latency", "rack:request", "--by", "route", "--filter", "status == 500"),
    )
    assert by_status == {
        int(status): count for status, count in log.count(r"^Completed (\d+)").items()
    }
    assert by_status == {200: 30, 404: 15, 201: 15, 500: 9}
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
    """The log leaves out what a new connection asks of the schema."""
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
    assert by_statement['INSERT INTO "orders" ("item_id", "count") VALUES (?)'] == 15
    assert cached == summed(queries - not_cached, lambda _, statement, __: statement)
    assert sum(cached.values()) == 15
    assert by_name == summed(queries, lambda name, _, __: name)


def test_views_and_jobs(counts):
    (templates, collections, jobs), log = counts(
        ("latency", "action_view:render_template", "--by", "template"),
        ("values", "action_view:render_collection", "count"),
        ("latency", "active_job:perform", "--by", "job"),
    )
    assert templates == log.count(r"^  Rendered (views/\S+) \(")
    assert templates == {
        "views/items/index.html.erb": 15,
        "views/items/show.html.erb": 15,
    }
    assert sum(collections.values()) == sum(
        log.count(r"^  Rendered collection of (\S+)").values()
    )
    assert jobs == log.count(r"Performed (\w+) \(") == {"ReceiptJob": 15}
