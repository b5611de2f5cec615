"""Completion of names at the end of a console line.

The process is asked with reflection alone: no method of the program's is called, no
constant is loaded, and what would have to be run to be known (``a.b.``) stays as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST_NAMES = 200
MOST_BYTES = 1 << 16
_MOST_NAME = 128

_KEYWORDS = (
    *("alias", "begin", "break", "case", "class", "def", "defined?", "do", "else"),
    *("elsif", "end", "ensure", "false", "for", "if", "in", "module", "next", "nil"),
    *("not", "redo", "rescue", "retry", "return", "self", "super", "then", "true"),
    *("undef", "unless", "until", "when", "while", "yield"),
)

_END = re.compile(
    r"""(?:(?P<receiver> (?:::)?[A-Z]\w*(?:::[A-Z]\w*)* | [a-z_]\w* | @\w+
          | \d+ | "[^"\\]*" | '[^'\\]*')
        \s*(?P<mark> &?\. | ::))?
        (?P<word> [@$]?\w*)\Z""",
    re.VERBOSE,
)
_GOES_BEFORE = re.compile(r"[\w.:@$\])}]\Z")
"""Before it something stands that would have to be run, or of which it is a part."""
_NAME = re.compile(r"[@$]{0,2}[^\W\d]\w*[?!]?")

# Each method of a module's own, as a program may have replaced what an object has.
# Names behind ; are the block's own, should the program have such variables.
_ASK = r"""
lambda do |here, receiver, mark, word, most;
           reflect, constant, known, main, value, bare, names, object, found|
  reflect = lambda do |owner, name, object, *rest|
    owner.instance_method(name).bind(object).call(*rest)
  end
  constant = lambda do |path|
    path.split("::").reject(&:empty?).inject(Object) do |scope, name|
      known = Module === scope && reflect[Module, :const_defined?, scope, name]
      throw :unknown if !known || reflect[Module, :autoload?, scope, name]
      reflect[Module, :const_get, scope, name]
    end
  end
  main = here.receiver
  value = lambda do
    case receiver
    when /\A(::)?[A-Z]/ then constant[receiver]
    when /\A@/ then reflect[Kernel, :instance_variable_get, main, receiver]
    when /\A\d/ then 0
    when /\A["']/ then ""
    when "self" then main
    else
      throw :unknown unless here.local_variable_defined?(receiver)
      here.local_variable_get(receiver)
    end
  end
  bare = lambda do
    case word
    when /\A@/ then reflect[Kernel, :instance_variables, main]
    when /\A\$/ then global_variables
    when /\A[A-Z]/ then reflect[Module, :constants, Object]
    else
      here.local_variables + reflect[Kernel, :methods, main] +
        reflect[Kernel, :private_methods, main]
    end
  end
  names = catch(:unknown) do
    if receiver.empty?
      bare.call
    else
      object = value.call
      found = reflect[Kernel, :methods, object]
      found += reflect[Module, :constants, object] if mark == "::" && Module === object
      found
    end
  end
  found = (names || []).map(&:to_s).select { |name| name.start_with?(word) }
  $stdout.write(found.uniq.sort.first(most).join("\n"))
end.call(binding, *%w[TEXTS].map do |text|
  [text[1..-1]].pack("H*").force_encoding("UTF-8")
end, MOST)
"""


@dataclass(frozen=True, slots=True)
class Question:
    """The end of a line: ``receiver`` and ``mark`` (``.``), or none; and ``word``."""

    receiver: str
    mark: str
    word: str

    @property
    def code(self) -> str:
        """Return code for the process; it prints names, a line each."""
        texts = (self.receiver, self.mark, self.word)
        both = " ".join("_" + text.encode("utf-8", "replace").hex() for text in texts)
        return _ASK.replace("TEXTS", both).replace("MOST", str(MOST_NAMES))


def question(before: str) -> Question | None:
    """Return what to ask for a line up to the cursor; None if nothing can be known."""
    found = _END.search(before)
    if found is None or _GOES_BEFORE.search(before[: found.start()]):
        return None
    receiver, mark, word = (found[name] or "" for name in ("receiver", "mark", "word"))
    if not receiver and not word:
        return None
    return Question(receiver, mark, word)


def choices(question: Question, answer: bytes) -> list[str]:
    """The names, of which a process may have written anything."""
    lines = answer[:MOST_BYTES].decode("utf-8", "replace").split("\n")
    names = {name for name in lines if _is_fit(name, question.word)}
    if not question.receiver:
        names.update(word for word in _KEYWORDS if word.startswith(question.word))
    return sorted(names)[:MOST_NAMES]


def _is_fit(name: str, word: str) -> bool:
    is_name = len(name) <= _MOST_NAME and _NAME.fullmatch(name) is not None
    return is_name and name.isprintable() and name.startswith(word)


class Bounded:
    """Keeps what comes, up to MOST_BYTES."""

    def __init__(self) -> None:
        self.data = b""

    def __call__(self, data: bytes) -> None:
        self.data += data[: MOST_BYTES - len(self.data)]
