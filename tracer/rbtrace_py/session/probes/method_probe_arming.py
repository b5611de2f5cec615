"""Enables Ruby's own method probes.

Since Ruby 2.5, ``ruby:method__entry`` and ``method__return`` fire only while a
TracePoint or the like traces the calls of every method. The agent runs our code, which
has a TracePoint on a sleeping thread. The methods of all threads then fire the probes,
but no call runs a line of Ruby for it. The TracePoint ends when we detach, and is not
inherited by children. Once per hour, the code's time limit ends and the code is
run again. The probes are then silent for a moment.
"""

from __future__ import annotations

from collections.abc import Iterable

from rbtrace_py.agent.client import Agent
from rbtrace_py.agent.place import HOW_TO_LOAD, NoAgent
from rbtrace_py.errors import NoSuchTarget, RbtraceError
from rbtrace_py.linux.closing import Closing
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.ruby_probes import PROVIDER
from rbtrace_py.model.probes import Probe
from rbtrace_py.session.inside.agent_task import AgentTask, has_other_ractors
from rbtrace_py.session.targets.confirmation import (
    Confirm,
    Confirmation,
    NotConfirmed,
    what_stays,
)

NAMES = ("method__entry", "method__return")
_SPEAKS_BEFORE = [2, 5]

CODE = """
lambda do
  own = Thread.current
  queue = Queue.new
  own.thread_variable_set(%(queue)s, queue)
  tracer = TracePoint.new(:call, :return) {}
  parked = nil
  undo = lambda do
    tracer.disable
    parked&.kill
  end
  ::Tracepoint::Agent.undoing(undo) do
    parked = Thread.new { loop { sleep } }
    begin
      tracer.enable(target_thread: parked)
    rescue ArgumentError # before Ruby 2.7
      tracer.enable
    end
    own.thread_variable_get(:rbtrace_stdout).write([1, 0].pack("V2"))
    queue.pop
  end
end.call
"""


def is_silent(probe: Probe) -> bool:
    """Return whether a probe only fires while something enables it."""
    return probe.provider == PROVIDER and probe.name in NAMES


class MethodProbeArming(Closing):
    """The TracePoints in a set of processes.

    Args:
        processes: The processes.
        confirm: Called before compiled code is discarded.

    Attributes:
        notes: Notes for the user.

    Raises:
        NotConfirmed: The user did not accept this.
    """

    def __init__(self, processes: Iterable[Process], confirm: Confirm) -> None:
        self.notes: list[str] = []
        self._tasks: list[AgentTask] = []
        self._confirmation = Confirmation(confirm)
        try:
            for process in processes:
                self._park(process)
        except BaseException:
            self.close()
            raise

    def _park(self, process: Process) -> None:
        try:
            with Agent(process) as agent:
                hello = agent.hello
            if [] < _version(hello.get("ruby")) < _SPEAKS_BEFORE:
                return
            self._confirmation.ask(what_stays(hello))
            self._tasks.append(AgentTask(process, CODE))
            if has_other_ractors(hello):
                self.notes.append(
                    f"process {process.pid} has other Ractors: Ruby's method"
                    " probes fire only in its main Ractor"
                )
        except NoAgent:
            self.notes.append(
                f"Ruby's method probes in process {process.pid} are silent unless"
                " something enables them (Ruby 2.5 and later). The agent does:"
                f" {HOW_TO_LOAD}"
            )
        except NoSuchTarget:
            return
        except NotConfirmed:
            raise
        except RbtraceError as error:
            self.notes.append(
                f"Ruby's method probes in process {process.pid} may be silent: {error}"
            )
        else:
            self.notes.append(
                "the agent enables Ruby's method probes with a TracePoint on a"
                " sleeping thread. The agent's own methods appear too, as"
                " Tracepoint::Agent"
            )

    def close(self) -> None:
        """Remove the TracePoints; may be called twice."""
        for task in self._tasks:
            task.close()
        self._tasks.clear()


def _version(text: object) -> list[int]:
    parts = str(text).split(".")[:2]
    known = all(part.isdecimal() and len(part) < 4 for part in parts)
    return [int(part) for part in parts] if known else []
