"""Latencies of spans, pairs of probes, and Ruby's built-in probes."""

from __future__ import annotations

from collections.abc import Sequence

from rbtrace_py.bpf.attach import Attacher
from rbtrace_py.bpf.group_recorder import open_begins
from rbtrace_py.bpf.probe_engine import AttachRequest, Engine
from rbtrace_py.bpf.slots import Slot
from rbtrace_py.errors import UsageError
from rbtrace_py.model.counters import Counter
from rbtrace_py.model.probes import MAX_PAIRS, Probe, ProbeRole
from rbtrace_py.model.recorded_groups import RecordedValues
from rbtrace_py.session.probes import select
from rbtrace_py.session.probes.grouped import Grouped, Recipe
from rbtrace_py.session.probes.query import ProbeOptions
from rbtrace_py.session.probes.select import Pair
from rbtrace_py.session.targets.targets import Targets


class Latency(Grouped):
    """Distributions of durations, recorded in the kernel.

    A span's end probe has the duration as an argument. For pairs, the kernel stores
    the begin times per thread. The operands of ``--by`` and ``--filter`` are read at
    the end of a pair.
    """

    command = "latency"
    unit = "ns"

    def __init__(
        self,
        targets: Targets,
        words: Sequence[str],
        options: ProbeOptions | None = None,
    ) -> None:
        super().__init__(targets, words, options)
        self._pairs: dict[Pair, int] = {}
        self._meanings: dict[str, tuple[Pair, ...]] = {}
        self._spans: list[str] = []
        self._kinds: list[str] = []
        self._has_some = False
        self._pair_engine: Engine | None = None

    # -------------------------------------------------------------- selecting

    def check(self, probes: Sequence[Probe]) -> None:
        for word in self.words:
            pairs = self._pairs_of(word, probes)
            for pair in pairs:
                for name in (pair.begin, pair.end):
                    if not select.pick(name, probes):
                        raise self._unknown(word, name, probes)
            if not pairs and not self._spans_of(word, probes):
                if not select.pick(word, probes):
                    raise select.unknown_probe(word, probes, self.command)
                if not select.is_glob(word):
                    raise self._no_span(select.pick(word, probes)[0])
                raise UsageError(
                    f"{word} matches probes, but no span",
                    "List the spans with `rbtrace-py probes PID`; for other probes,"
                    " name a pair: BEGIN..END",
                )

    def check_before(self) -> None:
        super().check_before()
        for word in self.words:
            select.parse_pair(word)

    @staticmethod
    def _unknown(word: str, name: str, probes: Sequence[Probe]) -> Exception:
        error = select.unknown_probe(name, probes)
        if word.removeprefix(":") not in select.BUILT_IN_PAIRS:
            return error
        if any(probe.provider == "ruby" for probe in probes):
            error.hint = f"Use Ruby 4.1 or later, whose built-in probes {word} needs"
        else:
            error.hint = (
                f"Use a Ruby with built-in probes, which {word} needs: this one was"
                " built without them (like Debian's 3.3 and later); see `rbtrace-py"
                " doctor PID`"
            )
        return error

    @staticmethod
    def _no_span(probe: Probe) -> UsageError:
        if probe.role is ProbeRole.SPAN_BEGIN and probe.span_name:
            return UsageError(
                f"{probe.full_name} is the begin of a span and has no duration",
                f"Use the name of the span: {probe.provider}:{probe.span_name}",
            )
        return UsageError(
            f"{probe.full_name} is not a span: it has no duration",
            "Name a pair of probes, BEGIN..END, or define a span in the program:"
            f" Tracepoint.span(:{probe.name}) {{ … }}",
        )

    def named(self, probes: Sequence[Probe]) -> list[Probe]:
        pairs = [pair for word in self.words for pair in self._pairs_of(word, probes)]
        names = [name for pair in pairs for name in (pair.begin, pair.end)]
        found = [p for name in names for p in select.pick(name, probes)]
        words = [w for w in self.words if not self._pairs_of(w, probes)]
        spans = [w for w in words if not select.is_glob(w)]
        return found + [p for w in spans for p in self._spans_of(w, probes)]

    def _pairs_of(self, word: str, probes: Sequence[Probe]) -> tuple[Pair, ...]:
        if word in self._meanings:
            return self._meanings[word]
        pair = select.parse_pair(word)
        if pair is not None:
            return (pair,)
        return select.built_in(word, probes) or ()

    @staticmethod
    def _spans_of(word: str, probes: Sequence[Probe]) -> list[Probe]:
        found = select.pick(word, probes)
        return [p for p in found if select.duration_operand(p) is not None]

    @property
    def hint(self) -> str:
        if self._has_some:
            return ""
        return "calls count when they end; `rbtrace-py dump PID` shows what is running"

    def finish(self) -> None:
        super().finish()
        self._has_some = self.seen > 0

    def plan(self, probes: Sequence[Probe]) -> None:
        if not self._engines:
            # Fix the meaning of each word now: probes may be defined later.
            self._meanings = {w: self._pairs_of(w, probes) for w in self.words}
        ends = [probe for word in self.words for probe in self._ends(word, probes)]
        self.filter.settle(ends)
        for word in self.words:
            for pair in self._pairs_of(word, probes):
                self._plan_pair(pair, probes)
            if not self._pairs_of(word, probes):
                self._plan_spans(word, probes)

    def _ends(self, word: str, probes: Sequence[Probe]) -> list[Probe]:
        pairs = self._pairs_of(word, probes)
        if pairs:
            return [p for pair in pairs for p in select.pick(pair.end, probes)]
        return self._spans_of(word, probes)

    def _plan_pair(self, pair: Pair, probes: Sequence[Probe]) -> None:
        if pair not in self._pairs and len(self._pairs) >= MAX_PAIRS:
            raise UsageError(f"more than {MAX_PAIRS} pairs at once")
        begins = select.pick(pair.begin, probes)
        self.check_operands(pair.end, select.pick(pair.end, probes))
        for probe in self.pick(pair.end, probes):
            if probe in begins:
                raise UsageError(
                    f"{pair.series}: both ends are {probe.full_name}",
                    "Name two different probes: BEGIN..END",
                )
            self.filter.check(probe)
            self.settle_series(pair.series, probe)
        self._pairs.setdefault(pair, len(self._pairs))

    def _plan_spans(self, word: str, probes: Sequence[Probe]) -> None:
        self.check_operands(word, self._spans_of(word, probes))
        for probe in self._picked_spans(word, probes):
            self.filter.check(probe)
            name = select.series_name(probe)
            self.settle_series(name, probe)
            if word not in self._spans:
                self._spans.append(word)

    def _picked_spans(self, word: str, probes: Sequence[Probe]) -> list[Probe]:
        return self.fitting(self._spans_of(word, probes))

    # --------------------------------------------------------------- programs

    def make_engines(self, attacher: Attacher) -> None:
        if self._spans or not self._pairs:
            recipe = Recipe("values.c", RecordedValues.DURATION, ("", ""))
            self.make_recording(attacher, recipe)
            self._kinds.append("spans")
        if self._pairs:
            pairs = len(self._pairs)
            recipe = Recipe("pairs.c", RecordedValues.DURATION, (), pairs)
            engine = self.make_recording(attacher, recipe)
            engine.follow_thread_exits()
            self._kinds.append("pairs")
            self._pair_engine = engine

    def requests(self, engine: int, probes: Sequence[Probe]) -> list[AttachRequest]:
        if self._kinds[engine] == "spans":
            words = [w for w in self.words if not self._pairs_of(w, probes)]
            found = [p for w in words for p in self._picked_spans(w, probes)]
            return [self._want_span(probe) for probe in dict.fromkeys(found)]
        return [want for pair in self._pairs for want in self._want_pair(pair, probes)]

    def _want_span(self, probe: Probe) -> AttachRequest:
        outcome = select.outcome_operand(probe)
        own = [
            Slot(operand=select.duration_operand(probe)),
            Slot(operand=outcome if outcome is not None else 0),
        ]
        return AttachRequest(
            probe,
            self.series[select.series_name(probe)],
            self.with_key_and_filter(probe, own),
        )

    def _want_pair(self, pair: Pair, probes: Sequence[Probe]) -> list[AttachRequest]:
        stack = self._pairs[pair]
        series = self.series.get(pair.series)
        if series is None:
            return []
        begins = [
            AttachRequest(probe, series, (), role=2 * stack)
            for probe in select.pick(pair.begin, probes)
        ]
        ends = [
            AttachRequest(
                probe, series, self.with_key_and_filter(probe, ()), role=2 * stack + 1
            )
            for probe in self.pick(pair.end, probes)
        ]
        return begins + ends

    # ----------------------------------------------------------------- answer

    def result_counters(self) -> dict[str, int]:
        which = [Counter.BEYOND_RANGE]
        if "spans" in self._kinds:
            which += [
                Counter.RAISED,
                Counter.THROWN,
                Counter.RUNNING_AT_ATTACH,
                Counter.NEGATIVE,
            ]
        if "pairs" in self._kinds:
            which += [Counter.NO_BEGIN, Counter.TOO_DEEP]
        found = self.counters(*which)
        if self._pair_engine is not None:
            found["open_begins"] = open_begins(self._pair_engine)
        return found
