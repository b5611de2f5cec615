"""scripts/check_english.py: the sentences that it finds, and those that it flags."""

from __future__ import annotations

from types import ModuleType

import pytest

import script_modules


@pytest.fixture(scope="module")
def checker() -> ModuleType:
    return script_modules.load("check_english")


@pytest.mark.parametrize(
    ("sentence", "fault"),
    [
        ("What does not fit is cut off.", "start with the subject"),
        ("Of which thread the stack is.", "start with the subject"),
        ("Those of a child come later.", "start with the subject"),
        ("How long a pass took.", "start with the subject"),
        ("Is the probe patched?", "state, do not ask"),
        ("The layout is that of Ruby 3.4.", "name the noun"),
        ("No thread of ours holds it.", "name the noun"),
        ("It depends on what is mapped.", "name what the clause describes"),
        ("A socket is no file.", "negate the verb"),
        ("The price while nobody traces.", "negate the verb"),
        ("The file is looked at twice.", "use a technical verb"),
        (
            "The number stands in front of the name; it stands there.",
            "use a technical verb",
        ),
        ("Prints one line an event.", "write per"),
        ("The list is read anew.", "use a plain adverb"),
        ("This is the thread that the lock belongs to.", "move the preposition"),
    ],
)
def test_a_stumbling_sentence_is_flagged(
    checker: ModuleType, sentence: str, fault: str
) -> None:
    assert checker.faults(sentence) == [fault]


@pytest.mark.parametrize(
    "sentence",
    [
        "A value that does not fit its type is converted.",
        "What is a probe?",
        "Of the 23 keys, the first five are printed.",
        "Those threads are skipped.",
        "The process is no longer traced.",
        "There is no agent in the process.",
        "Return whether the process runs CRuby.",
        "Once a process exits, its threads are removed.",
        "`what is` and ``that of`` are code.",
    ],
)
def test_a_plain_sentence_is_not_flagged(checker: ModuleType, sentence: str) -> None:
    assert checker.faults(sentence) == []


def test_sentences_of_python(checker: ModuleType) -> None:
    text = '''"""Read the stacks. Raises an error

if there are none."""
LIMIT = 3
"""Maximum number of stacks."""
# A comment goes over
# two lines.
name = "not a sentence"
option("--tid", help=f"Only these {UNIT} IDs.")
'''
    assert list(checker.sentences("a.py", text)) == [
        (1, "Read the stacks."),
        (1, "Raises an error"),
        (3, "if there are none."),
        (5, "Maximum number of stacks."),
        (9, "Only these IDs."),
        (6, "A comment goes over two lines."),
    ]


def test_sentences_of_a_page(checker: ModuleType) -> None:
    text = """# A heading that says it

The first sentence
ends here. The second follows.
- A bullet has one sentence.
- So does the next bullet.
| a table | has no sentence |
```
code has no sentences
```
"""
    assert list(checker.sentences("a.md", text)) == [
        (3, "The first sentence ends here."),
        (4, "The second follows."),
        (5, "A bullet has one sentence."),
        (6, "So does the next bullet."),
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.c", "int a;\n/* Read the first\n * word. */\n"),
        ("a.rb", "#!/usr/bin/ruby\n# Read the first\n# word.\nputs 1\n"),
        ("Makefile", "all:\n# Read the first\n# word.\n"),
    ],
)
def test_sentences_of_comments(checker: ModuleType, name: str, text: str) -> None:
    assert list(checker.sentences(name, text)) == [(2, "Read the first word.")]
