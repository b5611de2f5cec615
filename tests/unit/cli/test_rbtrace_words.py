"""rbtrace's command lines, translated to ours."""

from __future__ import annotations

import shlex

import pytest

from rbtrace_py.cli.common.rbtrace_arguments import translate
from rbtrace_py.errors import UsageError

C_CALLS = "methods written in C are left out; to include them, type:"
WITH_C_CALLS = "rbtrace-py rbtrace --c-calls "
SECONDS = " --rbtrace-times"
BOTH = "with --slow, methods are shown only when they are slow"


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("-p 1 -f", "calls 1" + SECONDS),
        ("--pid 1 2 --firehose", "calls 1,2" + SECONDS),
        ("--ps puma -f", "calls --ps puma" + SECONDS),
        ("-p 1 -m sleep String#gsub", "calls 1 -m sleep -m 'String#gsub'" + SECONDS),
        ("-m a -m b -p 1", "calls 1 -m a -m b" + SECONDS),
        ("-p 1 -f -m sleep -s", "calls 1" + SECONDS),
        ("-p 1 -s", "calls 1 --slow=250" + SECONDS),
        ("-p 1 --slow=100", "calls 1 --slow=100" + SECONDS),
        ("-p 1 -s 100 --slow-methods A# b", "calls 1 --slow=100 --slow-methods 'A#'"
         " --slow-methods b" + SECONDS),
        ("-p 1 --slowcpu 5 --slow 9", "calls 1 --slowcpu=5" + SECONDS),
        ("-p1 -l -w A# b", "calls 1 --slowcpu=250 --slow-methods 'A#'"
         " --slow-methods b" + SECONDS),
        ("-p 1 -s100 -r3", "calls 1 --slow=100 --prefix=3" + SECONDS),
        ("-p 1 -tl=7 -ofile", "calls 1 --slowcpu=7 --start-time --output=file"
         + SECONDS),
        ("-p 1 -fu9", "calls 1 --timeout=9" + SECONDS),
        ("-p 1 --gc", "calls 1 -m garbage_collect --gc" + SECONDS),
        ("-p 1 -g -m a", "calls 1 -m a --gc" + SECONDS),
        ("-p 1 -c io puma", "calls 1 -c io -c puma" + SECONDS),
        ("-p 1 -ftn -r 3 -o x -a", "calls 1 --start-time --no-duration --append"
         " --output=x --prefix=3"),
        ("-p 1 -f -u 9 --attach --yes --c-calls", "calls 1 --c-calls --timeout=9"
         " --rbtrace-times --attach --yes"),
        ("-p 1 -e 'GC.stat'", "eval 1 GC.stat --echo"),
        ("-p 1 --eval=-1 --timeout 9", "eval 1 ' -1' --echo --timeout=9"),
        ("-p 1 -i", "console 1"),
        ("-p 1 --interactive irb", "console 1"),
        ("-p 1 -b", "backtraces 1"),
        ("-p 1 -b -1", "backtraces 1"),
        ("-p 1 --backtrace 3", "eval 1 'puts Thread.main.backtrace.first(3)' --echo"),
        ("-p 1 --memory", "memory 1"),
        ("-p 1 -y", "memory 1"),
        ("-p 1 -h", "heapdump 1"),
        ("-p 1 --heapdump=x.gz", "heapdump 1 x.gz"),
        ("-p 1 --shapesdump", "shapesdump 1"),
        ("-p 1 --fork", "fork 1"),
        ("-p 1 -k -e 1", "fork 1"),
    ],
)  # fmt: skip
def test_the_same_in_our_words(theirs: str, ours: str) -> None:
    found = translate(shlex.split(theirs))
    assert shlex.join(found.words) == ours
    assert found.command == []


def test_a_command_to_start() -> None:
    words = ["-f", "--exec", "ruby", "-e", "1", "--", "-f"]
    found = translate(words)
    assert (found.words, found.command) == (["calls", "--rbtrace-times"], words[2:])


@pytest.mark.parametrize("before", ["--exec", "-x", "--wait 3 -x", "-nx"])
def test_a_command_alone_shows_all_its_calls(before: str) -> None:
    found = translate([*before.split(), "ruby", "shop.rb"])
    times = "--no-duration" if before == "-nx" else "--rbtrace-times"
    assert found.words == ["calls", times]
    assert found.command == ["ruby", "shop.rb"]
    assert "no method selected: showing all calls, as with -f" in found.notes
    assert ("waited for" in found.notes[0]) is ("wait" in before)


@pytest.mark.parametrize(
    ("theirs", "notes"),
    [
        ("-p 1 -m 'a#'", [C_CALLS, WITH_C_CALLS + "-p 1 -m 'a#'"]),
        ("-p 1 -m a --c-calls", []),
        ("-p 1 -m a -s", [BOTH, C_CALLS, WITH_C_CALLS + "-p 1 -m a -s"]),
        ("-p 1 -f -s -d", ["--devmode is not needed: reloaded classes are recognized",
                           C_CALLS, WITH_C_CALLS + "-p 1 -f -s -d"]),
        ("-p 1 -b 3", ["showing all lines of each thread"]),
        ("-p 1 -i pry", ["ignoring pry: the console is rbtrace-py's own"]),
        ("-p 1 -e 1", []),
    ],
)  # fmt: skip
def test_differences_from_rbtrace_are_noted(theirs: str, notes: list[str]) -> None:
    assert translate(shlex.split(theirs)).notes == notes


@pytest.mark.parametrize(
    ("theirs", "text"),
    [
        ("-p 1", "no action given"),
        ("-f", "missing target"),
        ("-p", "--pid needs an argument"),
        ("-p x -f", "x is not a pid"),
        ("-p 1 -f -x ruby", "--exec replaces --pid"),
        ("-p 1 -s100x -q", "no option -q"),
        ("-p 1 -z", "no option -z"),
        ("-p 1 --none", "no option --none"),
        ("-p 1 word -f", "word is not a pid"),
        ("word", "no option word"),
        ("-p 1 -f word", "too many arguments: 'word'"),
        ("-p 1 -e 1 2", "too many arguments: '2'"),
        ("-p 1 --backtrace many", "not a number"),
        ("-p 1 -f --exec ruby", "--exec replaces --pid"),
        ("-e 1 --exec ruby", "works on running processes"),
        ("-p 1 -- ruby", "no option --"),
    ],
)
def test_what_is_refused(theirs: str, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        translate(shlex.split(theirs))
    assert text in str(caught.value).replace("1,word", "word")
