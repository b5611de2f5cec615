"""A console session with a process: its local variables persist between inputs."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from rbtrace_py.agent.client import Agent, AgentError
from rbtrace_py.agent.protocol import Map, Value
from rbtrace_py.errors import RbtraceError
from rbtrace_py.linux.closing import Closing
from rbtrace_py.linux.process import Process
from rbtrace_py.model.process_state import Evaluated, Raised
from rbtrace_py.session.inside.commands import (
    EVAL_SECONDS,
    MOST_SECONDS,
    evaluate_through,
)
from rbtrace_py.session.inside.completion import Bounded, choices, question

Write = Callable[[bytes], None]

FILE = "(console)"


_GIVEN_UP = ("cancelled", "time")
_COMPLETE_SECONDS = 0.5


class GivenUp(RbtraceError):
    """The code was ended early; the session continues."""


class Form(Enum):
    """The form of code, as Ruby's own parser sees it."""

    UNFINISHED = ":unfinished"
    EXPRESSION = ":expression"
    OTHER = ":other"
    """Code with an error, or code that cannot be inside an expression."""


_FORMS = {form.value: form for form in Form}

# Messages of parse.y (up to 3.3) and prism (since 3.4). An error before the end is
# "unexpected", too, but not an "end-of-input". Prism's tokens between backticks would
# be valid if the code continued. Names after ; are local to the block, in case the
# program has such variables.
_ASK_FOR_FORM = r"""
lambda do |text, last; problem, message, open, wrong, is_open|
  problem = lambda do |code; error|
    RubyVM::InstructionSequence.compile(code)
    nil
  rescue SyntaxError => error
    error.message.scrub
  end
  return :expression unless problem[last]

  message = problem[text]
  open = ["unexpected end-of-input", "meets end of file", "before EOF",
          "expected a closing delimiter", "a `}` to close the hash"]
  wrong = /unexpected (?!end-of-input|`[^'`]+`)/
  is_open = message && open.any? { |words| message.include?(words) }
  is_open && message !~ wrong ? :unfinished : :other
end.call(*%w[TEXTS].map { |text| [text].pack("H*").force_encoding("UTF-8") })
"""


class Console(Closing):
    """A connection to the agent of ``process``, with its own binding.

    Attributes:
        program: Name of the program, as the process reports it.
        ruby: Version of Ruby, as the process reports it.
        is_busy: True while a request is unanswered.
        is_cancelled: True if the last request was cancelled.
    """

    def __init__(self, process: Process) -> None:
        self._agent = Agent(process)
        self.program = str(self._agent.hello.get("program"))
        self.ruby = str(self._agent.hello.get("ruby"))
        self.is_busy = False
        self.is_cancelled = False

    def close(self) -> None:
        self._agent.close()

    def cancel(self) -> None:
        """End the running code; may be called from a signal handler."""
        self.is_cancelled = True
        self._agent.cancel()

    def form(self, code: str) -> Form:
        """Return the form of ``code`` without running it."""
        both = " ".join(map(_hex, (code, _as_last(code))))
        question = _ASK_FOR_FORM.replace("TEXTS", both)
        found = self._ask(question, _drop, _drop, EVAL_SECONDS)
        if isinstance(found, Evaluated):
            return _FORMS.get(found.value, Form.OTHER)
        return Form.OTHER

    def evaluate(
        self, code: str, form: Form, line: int, out: Write, err: Write
    ) -> Evaluated | Raised:
        """Run code.

        Args:
            code: The Ruby code.
            form: Result of ``form``.
            line: Number of its first line in the session.
            out: Receives output at once.
            err: Receives error output at once.

        Returns:
            The value, or the exception that the code raised.

        Raises:
            GivenUp: The code was cancelled or reached the time limit.
        """
        if form is Form.EXPRESSION:
            code, line = _as_last(code), line - 1
        where: Map = {"file": FILE, "line": line, "keep": True}
        return self._ask(code, out, err, MOST_SECONDS, **where)

    def complete(self, before: str) -> list[str]:
        """Return sorted completions of the word at the end of ``before``.

        None of the program's methods is called.

        Raises:
            GivenUp: The query was cancelled or took too long.
        """
        found, answer = question(before), Bounded()
        if found is None:
            return []
        self._ask(found.code, answer, _drop, _COMPLETE_SECONDS, keep=True)
        return choices(found, answer.data)

    def _ask(
        self, code: str, out: Write, err: Write, seconds: float, **arguments: Value
    ) -> Evaluated | Raised:
        self.is_busy, self.is_cancelled = True, False
        try:
            return evaluate_through(self._agent, code, out, err, seconds, **arguments)
        except AgentError as error:
            if error.code in _GIVEN_UP:
                raise GivenUp(str(error)) from error
            raise
        finally:
            self.is_busy = False


def _as_last(code: str) -> str:
    """Return the code with its value stored in ``_``; it starts one line later."""
    return f"_ = begin\n{code}\nend"


def _hex(text: str) -> str:
    return text.encode("utf-8", "replace").hex()


def _drop(data: bytes) -> None:
    """Drop the parser's warnings, which appear again when the code runs."""
