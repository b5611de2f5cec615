"""Event source for methods, collections, exceptions, and objects: agent or probes.

If the agent is loaded, its hook reports more and costs less. Ruby's own probes need no
agent, if Ruby was built with them. Since Ruby 2.5, its method probes are silent until
something in the process enables them.
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
"""Ruby's own probes for each command and word."""

_NOT_TRACED = {
    "method": "method calls have a command of their own",
    "object": "new objects can be counted, but not traced",
    "gc": "collections can be counted and timed, but not traced",
}
"""Reasons why ``trace`` does not support a word."""


@dataclass(frozen=True, slots=True)
class EventSource:
    """Source of the events that a command requests.

    Attributes:
        is_agent: True for the agent's hook, False for probes.
        words: Words for the source.
        notes: Notes for the user about the choice.
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
    """Choose the event source of a command.

    Args:
        targets: The processes.
        command: ``latency``, ``count``, or ``trace``.
        words: Words of the command.
        via: ``agent``, ``probes``, or ``auto``.
        waits: Wait for an agent that is not loaded yet if probes cannot replace it.
        selecting: Option that selects methods, which only the agent supports.
        by: Key to group by.

    Raises:
        UsageError: The words need both sources, or do not support the command or the
            grouping.
        NoAgent: A process has neither the agent nor suitable probes.
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
    # Wait for the agent only if it is required.
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
    """Return the only source for a selection; raise UsageError for ``probes``."""
    if via == "probes":
        raise UsageError(
            f"{selecting} needs the agent's hook; Ruby's built-in probes do not"
            " support it",
            'Filter probes with --filter \'class == "Job" and method == "run"\'',
        )
    return "agent"


def _check_traced(words: Sequence[str], targets: Targets, waits: bool) -> None:
    """Raise UsageError for words that belong to other commands, unless probes match."""
    # With a wait, a probe of that name may be defined later.
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
    """Raise UsageError if the hook cannot group so; the hint names an alternative."""
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
    """Return whether a word is one of our words, and not a user's probe."""
    name = word.removeprefix(":")
    if name not in KINDS or (command == "trace" and name != "raise"):
        return False
    if word.startswith(":") or targets.command is not None:
        return True
    return not _is_users(name, targets)


def _is_users(name: str, targets: Targets) -> bool:
    """Return whether the program has a probe of that name."""
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
    """Return the words; replace our words by Ruby's own probes."""
    found = []
    for word in words:
        probe = PROBES.get((command, word.removeprefix(":")))
        if word in ours and probe is None:
            raise UsageError(f"Ruby has no built-in probes for {command} {word}")
        found.append(probe if word in ours and probe else word)
    names = [word.removeprefix(":") for word in ours]
    note = f"{', '.join(names)}: from Ruby's built-in probes"
    # In insns.def, newarray, newhash, and strings have their own probes.
    if "object" in names:
        note += "; object leaves out strings, arrays, and hashes from literals"
        note += ", and objects that ZJIT creates"
    return EventSource(False, tuple(found), (note,))


def _can_do_without(names: Sequence[str]) -> bool:
    """Return whether Ruby's probes report as much as the agent."""
    return not {"method", "object"} & set(names)


def _have_agents(targets: Targets, needs_agents: bool) -> bool:
    """Return whether all required processes have an agent.

    With ``needs_agents``, probes cannot replace the agent. If children are followed as
    well, one process with an agent is enough.
    """
    # A program that we will start does not run yet.
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
    """Without the agent, raise NoAgent if Ruby's probes are insufficient, too."""
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
