#!/usr/bin/env python3
"""Find sentences that are hard to read, in pages, docstrings, comments, and help.

scripts/check_english.py             check all files of the checkout
scripts/check_english.py PATH...     list what is found in these files or folders

Exits with 1 above 3 flagged sentences per 100. A flag is a hint: leave a sentence that
reads well. See "Style" in CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PER_100 = 3
_HASH_COMMENTS = {".rb", ".rake", ".gemspec", ".ru", ".sh", ".toml", ".yml"}
_SHOWN_TEXTS = {"help", "short_help", "epilog", "hint"}

_BE = r"(?:is|are|was|were|be|been|being)"
_PREPOSITION = r"(?:about|against|at|beside|by|for|from|in|of|on|to|with)"
_UNIT = (
    r"(?:call|class|command|event|file|format|frame|key|line|method|name|probe|process"
    r"|question|row|sample|test|thread)"
)
_PATTERNS = {
    "start with the subject": (
        rf"^(?:(?:And|But|Or|Also|Not)\s)?(?:(?i:{_PREPOSITION})\swh(?:at|ich|om?|ose|ere)\b"
        r"|(?:[Ww]hat|[Ww]ho|Whom|Whose|Whether|Which|Where)\b(?!.*\?$)"
        r"|[Tt]hose\s(?:after|before|for|from|in|of|that|to|who|with)\b"
        r"|Of\s(?!course|(?:the|these|those)\s|\d)"
        r"|How\s(?:far|long|many|much|often|old)\b(?!.*\?$)"
        r"|That\s(?:a|an|each|it|the|they)\b|So\s(?:long|many|much|often)\b)"
    ),
    "state, do not ask": (
        r"^(?:Are|Can|Could|Did|Do|Does|Had|Has|Have|Is|May|Must|Was|Were)\b.*\?$"
    ),
    "name the noun": (
        r"\b(?:(?:than|and|or|to|is|are|by|as|with|from|for|of|in)\s(?:that|those)\sof"
        r"|(?:the|an?)\sones?\s(?:that|which|who|of)|of\s(?:ours|theirs|yours)"
        r"|such\sas\s(?:it|they))\b"
    ),
    "name what the clause describes": (
        rf"(?:[,;:]|\b(?:{_PREPOSITION}|and|or|than))\s"
        rf"(?:what\s(?:{_BE}|has|had|can|may|comes|goes|stands|follows|belongs)"
        r"|who(?:ever)?\s(?:has|can|may|reads|asks|looks|waits))\b"
    ),
    "negate the verb": (
        rf"\b(?:nobody|(?<![Tt]here\s){_BE}\sno\s(?!longer|more\s)"
        r"|(?:it|that|this|they|which|who)\s(?:is|are)\snone)\b"
    ),
    "use a technical verb": (
        rf"\b(?:{_BE}\s(?:begun|given\sup|had|heard|heeded|let|looked|said|told|thought)"
        r"|(?:stand|stands|stood)\s(?:above|at|below|beside|for\sitself|here|in|on|there)"
        r"|(?:comes?|came)\s(?:about|of|to\sbe)|(?:goes|went)\son|lies?\s(?:at|there)"
        r"|lets?\sgo|looks?\s(?:into|upon))\b"
    ),
    "write per": (
        rf"\b(?:one|two|once|twice|lines?|rows?|files?|entry)\san?\s{_UNIT}\b"
        rf"|\ban?\s{_UNIT}\seach[,.;]"
    ),
    "use a plain adverb": (
        r"\b(?:anew|as\syet|at\sthat[.,;]|by\sand\sby|ever\s(?:new|other)|for\sgood"
        r"|hereby|thereof|therein|wherein|whereby)\b"
    ),
    "move the preposition": (
        r"\b(?:that|which|what)\s(?:[\w'-]+\s){1,6}"
        r"(?:against|at|beside|by|for|from|of|to|with)[.;]$"
    ),
}
_FAULTS = {name: re.compile(text) for name, text in _PATTERNS.items()}
_CODE = re.compile(r"``[^`]+``|`[^`]+`|\]\([^)]*\)|https?://\S+")
_SENTENCE = re.compile(r"\S.*?(?:[.!?:;](?=\s+[A-Z`(*])|\n\s*\n|\Z)", re.S)
_TWO_WORDS = re.compile(r"[a-z]{2,}\s[a-z]{2,}")
_FENCED = re.compile(r"^ *(```|~~~).*?^ *\1", re.S | re.M)
_MARKDOWN_STOP = re.compile(r"\s*(?:$|[#|!<]|(?P<bullet>(?:[-*]|\d+\.)\s))")

Block = tuple[int, str]  # number of the first line, and text


def faults(sentence: str) -> list[str]:
    """Return what to change in a sentence, without its inline code."""
    bare = re.sub(r"\s+", " ", _CODE.sub("X", sentence)).strip()
    return [name for name, pattern in _FAULTS.items() if pattern.search(bare)]


def sentences(name: str, text: str) -> Iterator[Block]:
    """Yield the sentences of a file's prose, each with its line."""
    for first, block in _blocks(name, text):
        for match in _SENTENCE.finditer(block):
            sentence = re.sub(r"\s+", " ", match[0]).strip()
            if _TWO_WORDS.search(sentence):
                yield first + block.count("\n", 0, match.start()), sentence


def _blocks(name: str, text: str) -> Iterator[Block]:
    suffix = Path(name).suffix
    if suffix == ".md":
        yield from _paragraphs(text)
    elif suffix == ".py":
        yield from _python_strings(text)
        yield from _joined(_python_comments(text))
    elif suffix in {".c", ".h", ".js", ".css"}:
        for match in re.finditer(r"/\*(.*?)\*/", text, re.S):
            line = text.count("\n", 0, match.start()) + 1
            yield line, re.sub(r"^\s*\*+ ?", "", match[1], flags=re.M)
    elif suffix in _HASH_COMMENTS or name.endswith("Makefile"):
        rows = enumerate(text.split("\n"), 1)
        found = ((line, re.match(r"\s*#(?!!) ?(.*)", row)) for line, row in rows)
        yield from _joined((line, match[1]) for line, match in found if match)


def _paragraphs(text: str) -> Iterator[Block]:
    """Yield a page's paragraphs and bullets, without code, tables, and headings."""
    text = _FENCED.sub(lambda match: "\n" * match[0].count("\n"), text)
    rows: list[Block] = []
    for line, row in enumerate(text.split("\n"), 1):
        stop = _MARKDOWN_STOP.match(row)
        if stop:
            yield from _joined(rows)
            rows = []
        if not stop or stop["bullet"]:
            rows.append((line, row[stop.end() :] if stop else row))
    yield from _joined(rows)


def _python_strings(text: str) -> Iterator[Block]:
    """Yield docstrings, also of attributes, and texts of options and hints."""
    for node in ast.walk(ast.parse(text)):
        is_shown = isinstance(node, ast.keyword) and node.arg in _SHOWN_TEXTS
        value = getattr(node, "value", None)
        if value and (is_shown or isinstance(node, ast.Expr)):
            parts = (
                getattr(part, "value", 0) for part in getattr(value, "values", [value])
            )
            yield value.lineno, "".join(part for part in parts if isinstance(part, str))


def _python_comments(text: str) -> Iterator[Block]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#!: ")


def _joined(rows: Iterable[Block]) -> Iterator[Block]:
    """Yield rows of consecutive lines as one block."""
    first, block = 0, list[str]()
    for line, row in rows:
        if block and line != first + len(block):
            yield first, "\n".join(block)
            block = []
        first = first if block else line
        block.append(row)
    yield first, "\n".join(block)


def main(places: list[str]) -> int:
    """Print flagged sentences of ``places``, or of all files if there are too many."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--"]
    listing += [str(Path(place).resolve()) for place in places]
    names = subprocess.check_output(listing, cwd=ROOT, text=True).splitlines()
    count, flagged = 0, list[str]()
    for name in sorted({*names} - {"CHANGELOG.md"}):
        path = ROOT / name
        if not path.is_file() or path.is_symlink():
            continue
        for line, sentence in sentences(name, path.read_text(errors="replace")):
            count += 1
            if found := faults(sentence):
                flagged.append(f"{name}:{line}: [{', '.join(found)}] {sentence}")
    is_over = len(flagged) * 100 > count * PER_100
    if places or is_over:
        print("\n".join(flagged))
        print(f"{len(flagged)} of {count} sentences flagged; limit: {PER_100} per 100")
    return int(is_over)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
