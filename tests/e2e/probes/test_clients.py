"""Clients of Redis and of HTTP: the counts equal the servers' own."""

from __future__ import annotations

import json

import pytest
from rails import need_sidekiq

from commands import answer, by_key


@pytest.fixture
def clients(start, tmp_path):
    need_sidekiq()  # and with Sidekiq the redis gem and a server
    return start("probes/clients.rb", str(tmp_path))


def test_commands(clients, trace):
    words = (clients.pid, "redis:command")
    by_command = trace("latency", *words, "--by", "command", "--json")
    by_key_of_redis = trace("count", *words, "--by", "key", "--json")
    sizes = trace("values", *words, "count", "--json")
    calls = json.loads(clients.step())["redis"]
    commands = by_key(answer(by_command))
    alone = {"SET": 20, "GET": 15, "CONFIG": 1, "INFO": 1}
    assert commands == {**alone, "PIPELINE": 5, "MULTI": 2}
    assert by_key(answer(by_key_of_redis)) == {"tea": 35, None: 9}
    (group,) = answer(sizes)["groups"]
    # The server has not counted the command that queries it.
    assert group["total"] == sum(calls.values()) + 1
    assert (calls["set"], calls["get"], calls["incr"]) == (20, 15 + 2, 5 * 3 + 2)


def test_requests(clients, trace):
    words = (clients.pid, "net_http:request")
    by_status = trace("latency", *words, "--by", "status", "--json")
    by_path = trace("count", *words, "--by", "path", "--json")
    connects = trace("count", clients.pid, "net_http:connect", "--json")
    served = json.loads(clients.step())["web"]
    assert served == {"connections": 4, "200": 9, "404": 4}
    assert by_key(answer(by_status)) == {200: served["200"], 404: served["404"]}
    assert by_key(answer(by_path)) == {"/items": 9, "/missing": 4}
    assert by_key(answer(connects)) == {None: served["connections"]}
