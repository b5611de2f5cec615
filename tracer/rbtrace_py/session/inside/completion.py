"""Completion of names at the end of a console line.

The code only uses reflection in the process. It neither calls the program's methods nor
loads constants. Expressions that would have to be evaluated (``a.b.``) have no
completions.
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
"""Text before a name that must be evaluated first, or that belongs to the name."""
_NAME = re.compile(r"[@$]{0,2}[^\W\d]\w*[?!]?")

# Call the reflection methods of modules: the program may have overridden an object's.
# Names after ; are local to the block, in case the program has such variables.
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
    """The end of a line: ``receiver`` and ``mark`` (``.``) or neither, and ``word``."""

    receiver: str
    mark: str
    word: str

    @property
    def code(self) -> str:
        """Code for the process, which prints names, one per line."""
        texts = (self.receiver, self.mark, self.word)
        both = " ".join("_" + text.encode("utf-8", "replace").hex() for text in texts)
        return _ASK.replace("TEXTS", both).replace("MOST", str(MOST_NAMES))


def question(before: str) -> Question | None:
    """Return the query for a line up to the cursor; None: no completion is possible."""
    found = _END.search(before)
    if found is None or _GOES_BEFORE.search(before[: found.start()]):
        return None
    receiver, mark, word = (found[name] or "" for name in ("receiver", "mark", "word"))
    if not receiver and not word:
        return None
    return Question(receiver, mark, word)


def choices(question: Question, answer: bytes) -> list[str]:
    """Return valid names from an answer, which may contain any bytes."""
    lines = answer[:MOST_BYTES].decode("utf-8", "replace").split("\n")
    names = {name for name in lines if _is_fit(name, question.word)}
    if not question.receiver:
        names.update(word for word in _KEYWORDS if word.startswith(question.word))
    return sorted(names)[:MOST_NAMES]


def _is_fit(name: str, word: str) -> bool:
    is_name = len(name) <= _MOST_NAME and _NAME.fullmatch(name) is not None
    return is_name and name.isprintable() and name.startswith(word)


class Bounded:
    """Collects output, up to MOST_BYTES."""

    def __init__(self) -> None:
        self.data = b""

    def __call__(self, data: bytes) -> None:
        self.data += data[: MOST_BYTES - len(self.data)]
