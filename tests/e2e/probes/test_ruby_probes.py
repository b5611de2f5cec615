"""Ruby's own probes: built-in words, semaphores, and what is not safe."""

from __future__ import annotations

import pytest

from commands import answer, by_key, has_ruby_probes, run
from processes import Target

LOOP = """
$stdout.sync = true
puts "ready"
while $stdin.gets
  5.times { GC.start }
  3.times { load ARGV[0] }
  [3, 1, 2].sort
  puts "done"
end
"""


@pytest.fixture
def ruby(tmp_path):
    """A Ruby without the gem, and without lambda literals."""
    loaded = tmp_path / "loaded.rb"
    loaded.write_text("1\n")
    script = tmp_path / "loop.rb"
    script.write_text(LOOP)
    if not has_ruby_probes():
        pytest.skip("this Ruby was built without its own probes")
    target = Target("ruby", "--disable-gems", str(script), str(loaded))
    yield target
    target.close()


def test_built_in_words(ruby, trace):
    tracer = trace("latency", ruby.pid, "gc", "gc-mark", "gc-sweep", "load", "--json")
    ruby.step()
    counts = {group["series"]: group["count"] for group in answer(tracer)["groups"]}
    assert counts["load"] == 3
    assert counts["gc-mark"] >= 5
    assert counts["gc"] == counts["gc-mark"] + counts["gc-sweep"]


def test_cmethods_need_a_yes(ruby, trace):
    out, err, code = run("latency", ruby.pid, "cmethod")
    assert (out, code) == ("", 1)
    assert "--yes" in err
    tracer = trace("latency", ruby.pid, "cmethod", "--by", "method", "--yes", "--json")
    ruby.step()
    counts = by_key(answer(tracer))
    assert counts["sort"] == 1
    assert counts["load"] == 3


def test_a_glob_passes_over_what_is_not_safe(ruby, trace):
    tracer = trace("count", ruby.pid, "ruby:*", "--json")
    ruby.step()
    counts = {group["series"]: group["count"] for group in answer(tracer)["groups"]}
    assert counts["ruby:load__entry"] == 3
    assert not any("cmethod" in name for name in counts)


def test_all_sites_of_a_probe_and_its_semaphore(ruby, trace):
    """gc__mark__begin and others have a semaphore: Ruby fires only if it is up."""
    tracer = trace("count", ruby.pid, "load__entry", "load__return", "--json")
    ruby.step()
    counts = {group["series"]: group["count"] for group in answer(tracer)["groups"]}
    assert counts == {"ruby:load__entry": 3, "ruby:load__return": 3}
