"""Event source for methods, collections, exceptions and objects: agent or Ruby.

The agent's hook sees more and costs less, where it was loaded. Ruby's own probes are
there without it where Ruby was built with them; those of methods are silent since
Ruby 2.5 until something in the process asks for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rbtrace_py.agent.place import HOW_TO_LOAD, NoAgent, connect, runs_no_ruby
from rbtrace_py.agent.refusal import Refused
from rbtrace_py.errors import NoSuchTarget, RbtraceError, UsageError
from rbtrace_py.linux.probes import find_probes, scan_probes
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.ruby_probes import PROVIDER, RUBY_PROBES, is_ruby_binary
from rbtrace_py.model.probes import Probe
from rbtrace_py.session.methods.tables import KINDS
from rbtrace_py.session.probes import select
from rbtrace_py.session.targets.targets import Targets

_ENTRY, _RETURN = "ruby:method__entry", "ruby:method__return"
PROBES: dict[tuple[str, str], str] = {
    ("latency", "method"): f"{_ENTRY}..{_RETURN}",
    ("latency", "gc"): ":gc",
    ("count", "method"): _ENTRY,
    ("count", "gc"): "ruby:gc__mark__begin",
    ("count", "raise"): "ruby:raise",
    ("count", "object"): "ruby:object__create",
    ("trace", "raise"): "ruby:raise",
}
"""What Ruby's own probes have for a word of a command."""

_NOT_TRACED = {
    "method": "method calls have a command of their own",
    "object": "new objects can be counted, but not traced",
    "gc": "collections can be counted and timed, but not traced",
}
"""Why ``trace`` does not take a word."""


@dataclass(frozen=True, slots=True)
class EventSource:
    """Source of the events that a command asks for.

    is_agent: the hooks; else probes
    words: for it
    notes: what to tell a user about the choice
    """

    is_agent: bool
    words: tuple[str, ...]
    notes: tuple[str, ...] = ()


def choose(
    targets: Targets,
    command: str,
    words: Sequence[str],
    via: str = "auto",
    waits: bool = False,
    selecting: str = "",
    by: str | None = None,
) -> EventSource:
    """Choose the source for ``words`` of ``command``; via: agent, probes or auto.

    waits: for an agent that is not there yet, where nobody else tells
    selecting: the option that says which methods, and that only the agent takes
    by: what to group by
    Raises UsageError for words that take both, or that cannot be told of or grouped
    so; NoAgent where there is nobody.
    """
    if selecting:
        via = _the_agent(via, selecting)
    if command == "trace":
        _check_traced(words, targets, waits)
    ours = [word for word in words if _is_ours(word, command, targets)]
    names = tuple(word.removeprefix(":") for word in ours)
    if not ours:
        return _probes_alone(words, via)
    if len(ours) < len(words):
        if via == "probes" or (via == "auto" and _can_do_without(names)):
            return _from_probes(command, words, ours)
        other = next(word for word in words if word not in ours)
        raise UsageError(
            f"{ours[0]} comes from the agent, but {other} is a probe",
            f"Use two commands; to select a method, -m {other}"
            if selecting
            else "Use two commands",
        )
    # Only who needs the agent waits for it.
    waits = (waits or targets.command is not None) and not _can_do_without(names)
    needs_agents = not _can_do_without(names)
    if via == "agent" or (
        via == "auto" and (waits or _have_agents(targets, needs_agents))
    ):
        _check_grouping(command, names, by)
        return EventSource(True, names)
    source = _from_probes(command, words, ours)
    if via == "auto":
        _check_probes(targets, names, source.words)
    return source


def _the_agent(via: str, selecting: str) -> str:
    """Return the only source for a selection; raise UsageError for another."""
    if via == "probes":
        raise UsageError(
            f"{selecting} needs the agent's hook; Ruby's built-in probes do not"
            " support it",
            'Filter probes with --filter \'class == "Job" and method == "run"\'',
        )
    return "agent"


def _check_traced(words: Sequence[str], targets: Targets, waits: bool) -> None:
    """Raise UsageError for what other commands tell of, and no probe is called."""
    # It may yet come where that is waited for.
    may_come = waits or targets.command is not None
    for word in words:
        name = word.removeprefix(":")
        if name not in _NOT_TRACED or (may_come and name == word):
            continue
        if name != word or not _is_users(name, targets):
            raise UsageError(
                f"trace works on probes and raise; {_NOT_TRACED[name]}",
                select.INSTEAD[name],
            )


def _check_grouping(command: str, names: Sequence[str], by: str | None) -> None:
    """Raise UsageError for what the hook does not know; the hint says who does."""
    if by in (None, "class", "pid"):
        return
    for name in names:
        knows_class_alone = name in ("raise", "object")
        if by == "method" and not knows_class_alone:
            continue
        ours = "class or pid" if knows_class_alone else "method, class or pid"
        probe = PROBES.get((command, name), "").split("..")[0]
        operands = RUBY_PROBES.get(probe.removeprefix("ruby:"), ())
        theirs = [o.name for o in operands if o.name not in ("class", "method")]
        raise UsageError(
            f"{name} cannot be grouped by {by}",
            f"Group by {ours}; or ask Ruby's own probes with --via probes,"
            f" by {' or '.join(filter(None, (', '.join(theirs), 'tid')))} too",
        )


def _is_ours(word: str, command: str, targets: Targets) -> bool:
    """Is it one of our words, and no user's probe?"""
    name = word.removeprefix(":")
    if name not in KINDS or (command == "trace" and name != "raise"):
        return False
    if word.startswith(":") or targets.command is not None:
        return True
    return not _is_users(name, targets)


def _is_users(name: str, targets: Targets) -> bool:
    """Has the program a probe of that name?"""
    return any(
        select.pick(name, _users_probes(process, targets))
        for process in targets.chosen()
    )


def _users_probes(process: Process, targets: Targets) -> list[Probe]:
    builtin = (PROVIDER, select.AGENT_PROVIDER)
    try:
        found = find_probes(process, targets.probes)
    except NoSuchTarget:
        return []
    return [probe for probe in found if probe.provider not in builtin]


def _probes_alone(words: Sequence[str], via: str) -> EventSource:
    if via == "agent":
        raise UsageError(
            "the agent provides none of these events",
            f"Use one of {', '.join(KINDS)}; probes come from the kernel",
        )
    return EventSource(False, tuple(words))


def _from_probes(
    command: str, words: Sequence[str], ours: Sequence[str]
) -> EventSource:
    """The words with ours replaced by what Ruby's own probes have."""
    found = []
    for word in words:
        probe = PROBES.get((command, word.removeprefix(":")))
        if word in ours and probe is None:
            raise UsageError(f"Ruby has no built-in probes for {command} {word}")
        found.append(probe if word in ours and probe else word)
    names = [word.removeprefix(":") for word in ours]
    note = f"{', '.join(names)}: from Ruby's built-in probes"
    # insns.def: newarray, newhash, and strings have probes of their own.
    if "object" in names:
        note += "; object leaves out strings, arrays, and hashes from literals"
    return EventSource(False, tuple(found), (note,))


def _can_do_without(names: Sequence[str]) -> bool:
    """Have Ruby's probes as much to say of it?"""
    return not {"method", "object"} & set(names)


def _have_agents(targets: Targets, needs_agents: bool) -> bool:
    """Have all that were named an agent? One that may be left out needs none.

    needs_agents: nobody else tells of it
    """
    # A program of ours has not begun, and is not begun for this.
    if targets.command is not None:
        return False
    if targets.follow and needs_agents:
        return any(map(_has_agent, targets.alive()))
    return all(map(_has_agent, targets.chosen()))


def _has_agent(process: Process) -> bool:
    return _agent_error(process) is None


def _agent_error(process: Process) -> RbtraceError | None:
    """Return why the agent cannot be reached, or None."""
    try:
        connect(process).close()
    except RbtraceError as error:
        return error
    return None


def _check_probes(targets: Targets, names: Sequence[str], words: Sequence[str]) -> None:
    """Without the agent: raise NoAgent where Ruby's probes are no help either."""
    if targets.command is not None:
        return
    for process in targets.chosen():
        refusal = _agent_error(process)
        if refusal is None:
            continue
        error = runs_no_ruby(process)
        if error is not None:
            raise error
        scan = scan_probes(process, targets.probes)
        found = [probe for probe in scan.probes if probe.provider == PROVIDER]
        wanted = [end for word in words for end in word.split("..")]
        has_all = all(select.pick(w, found) for w in wanted if w.startswith(PROVIDER))
        if "gc" in names and not select.pick("ruby:gc__mark__begin", found):
            has_all = False
        if not has_all:
            unread = (p.text for p in scan.problems if is_ruby_binary(p.path))
            why = next(unread, "its Ruby was built without probes")
        elif "method" in names:
            why = "Ruby's own method probes are silent by default since Ruby 2.5"
        else:
            continue
        if isinstance(refusal, Refused):
            raise refusal
        raise NoAgent(
            f"cannot trace {names[0]}: no agent in process {process.pid}, and {why}",
            f"{HOW_TO_LOAD}; or load it now: rbtrace-py attach {process.pid}",
        )
