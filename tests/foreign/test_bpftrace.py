"""bpftrace attaches to our probes and reads their arguments."""

from collections.abc import Callable

import pytest

from .tools import Bpftrace, Target

pytestmark = pytest.mark.root

Start = Callable[[int, str], Bpftrace]


def script(probe: str) -> str:
    arguments = ", ".join(f"arg{i}" for i in range(6))
    numbers = " ".join(["%lld"] * 6)
    return f'usdt:*:{probe} {{ printf(">{numbers}\\n", {arguments}); }}'


def shot(number: int) -> str:
    return " ".join(str(1000 * (i + 1) + number) for i in range(6))


def shots(count: int) -> list[str]:
    return [shot(number) for number in range(count)]


@pytest.fixture
def traced(target: Target, bpftrace: Start) -> Callable[..., Bpftrace]:
    """Attach to a probe of shop and wait until it prints."""

    def attach(name: str, pid: int | None = None) -> Bpftrace:
        tracer = bpftrace(pid or target.pid, script(f"shop:{name}"))
        tracer.wait_attached(lambda: target.tell(f"fire {name} 1"))
        assert target.ask(f"watched {name}") == "1"
        return tracer

    return attach


Attach = Callable[..., Bpftrace]


def test_the_first_six_arguments(target: Target, traced: Attach) -> None:
    target.tell("define shop twelve 12")
    tracer = traced("twelve")
    target.tell("fire twelve 23")
    assert tracer.last(shots(23)) == shots(23)


def test_arguments_of_every_size(target: Target, bpftrace: Start) -> None:
    target.tell("compat")
    tracer = bpftrace(target.pid, script("original:sized"))
    tracer.wait_attached(lambda: target.tell("compat-fire"))
    assert set(tracer.seen) == {"-1 2 -3 4 -5 6"}
    assert target.ask("watched compat") == "1"


def test_a_probe_defined_beside_a_traced_one(target: Target, traced: Attach) -> None:
    target.tell("define shop first 6")
    first = traced("first")
    target.tell("define shop later 6")
    assert target.ask("watched later") == "0"
    target.tell("fire later 1")
    later = traced("later")
    target.tell("fire later 2")
    target.tell("fire first 3")
    assert later.last(shots(2)) == shots(2)
    assert first.last(shots(3)) == shots(3)


def test_a_forked_child(target: Target, traced: Attach) -> None:
    target.tell("define shop before 6")
    child = target.fork()
    target.tell("define shop in_child 6")
    before, own = traced("before", child), traced("in_child", child)
    target.tell("fire before 2")
    target.tell("fire in_child 2")
    assert before.last(shots(2)) == own.last(shots(2)) == shots(2)


def test_nothing_stays_behind_a_killed_tracer(target: Target, traced: Attach) -> None:
    target.tell("define shop checkout 6")
    traced("checkout").close()
    target.wait_watched("checkout", expected=False)
    target.tell("fire checkout 1")
