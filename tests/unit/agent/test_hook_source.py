"""The hook's source: each part separately, and its assumptions about CRuby."""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from processes import ROOT
from rbtrace_py.agent.hook import hook
from rubies import DIRECTORY, EACH, NAMES, chroot
from ruby_builds import ARCHIVES, Build

AGENT = ROOT / "ext" / "agent"
HEADERS = sorted((AGENT / "hook").glob("*.h"))
FLAGS = ["-std=gnu11", "-Wall", "-Wextra", "-Wno-strict-prototypes", "-fsyntax-only"]

TYPES = {
    "hook_function function": "rb_event_hook_func_t function",
    "method_function function": "VALUE (*function)(ANYARGS)",
    "uint32_t events": "rb_event_flag_t events",
    "int flags": "rb_event_hook_flag_t flags",
    "uint32_t rb_tracearg_event_flag": "rb_event_flag_t rb_tracearg_event_flag",
    "struct trace_arg *": "rb_trace_arg_t *",
    "rb_string_value_ptr(VALUE *": "rb_string_value_ptr(volatile VALUE *",
    "unsigned long long rb_num2ull": "unsigned LONG_LONG rb_num2ull",
    "void *data, const void *type": "void *data, const rb_data_type_t *type",
    "void *rb_ractor_local_storage_ptr_newkey(const void *type)": (
        "rb_ractor_local_key_t rb_ractor_local_storage_ptr_newkey("
        "const struct rb_ractor_local_storage_type *type)"
    ),
    "void *key": "rb_ractor_local_key_t key",
}
"""Declarations of the hook that differ from CRuby's headers without a difference for
a call: pointers to opaque data, and enumerations."""
UNDECLARED = {"rb_frame_method_id_and_class"}
"""Functions that are exported, but in no installed header."""
ENUMERATORS = {
    "EVENT_NEWOBJ": "RUBY_INTERNAL_EVENT_NEWOBJ",
    "EVENT_GC_": "RUBY_INTERNAL_EVENT_GC_",
    "EVENT_": "RUBY_EVENT_",
    "HOOK_": "RUBY_EVENT_HOOK_FLAG_",
    "TYPE_": "RUBY_T_",
}


def compiled(text: str, *flags: str) -> str:
    """Return the compiler's messages: none if all is well."""
    command = ["gcc", *FLAGS, *flags, "-x", "c", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    return done.stderr


@pytest.mark.parametrize("header", HEADERS, ids=lambda path: path.name)
def test_a_header_stands_alone_and_comes_once(header: Path) -> None:
    assert compiled(f'#include "{header}"\n' * 2) == ""


def test_every_source_is_listed() -> None:
    listed = (AGENT / "sources.txt").read_text().split()
    there = sorted(AGENT.rglob("*.c"))
    assert [AGENT / name for name in listed] == there


def test_only_its_beginning_is_seen(tmp_path: Path) -> None:
    """All other symbols are bound without a table, so another library cannot replace
    them."""
    built = tmp_path / "agent_hook.so"
    built.write_bytes(hook())
    command = ["nm", "-D", "--defined-only", str(built)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [line.split()[2] for line in done.stdout.splitlines()] == [
        "Init_agent_hook",
        "ruby_abi_version",
    ]


def declarations() -> Iterator[tuple[str, str]]:
    """Yield names of CRuby's functions and variables, and CRuby's declarations."""
    text = (AGENT / "hook" / "cruby.h").read_text()
    for found in re.findall(r"^extern [^;]+;", text, re.MULTILINE):
        line = re.sub(r" __attribute__\(\(\w+\)\)", "", found)
        name = re.search(r"\brb_\w+", line)
        assert name
        for ours, theirs in TYPES.items():
            line = line.replace(ours, theirs)
        yield name[0], line


def enumerators() -> Iterator[tuple[str, str, str]]:
    """Yield the hook's name, its value, and CRuby's name."""
    text = (AGENT / "hook" / "cruby.h").read_text()
    for name, value in re.findall(r"^  ([A-Z_]+) = (\w+),$", text, re.MULTILINE):
        prefix = next(p for p in ENUMERATORS if name.startswith(p))
        yield name, value, ENUMERATORS[prefix] + name.removeprefix(prefix)


@functools.cache
def include(name: str) -> tuple[str, tuple[int, ...]]:
    """Return the flags for the headers of a Ruby, as seen from here, and its
    version."""
    program = """
        require "rbconfig"
        puts RbConfig::CONFIG.values_at("rubyhdrdir", "rubyarchhdrdir"), RUBY_VERSION
    """
    done = subprocess.run(
        [*Build(name).words(), "-e", program],
        capture_output=True,
        text=True,
        check=True,
    )
    *folders, version = done.stdout.split()
    root = str(DIRECTORY / name) if name in NAMES else ""
    flags = " ".join(f"-isystem {root}{folder}" for folder in folders)
    return flags, tuple(map(int, version.split(".")[:2]))


SINCE = {"rb_class_attached_object": (3, 2), "rb_cRactor": (3, 0)}
"""Weak symbols, with the version that introduced them."""


@pytest.mark.parametrize("name", [*EACH, *map(chroot, ARCHIVES)])
def test_cruby_is_as_its_headers_say(name: str) -> None:
    flags, version = include(name)
    has_ractors = version >= (3, 0)
    lines = ["#include <ruby.h>", "#include <ruby/debug.h>"]
    lines += ["#include <ruby/ractor.h>"] * has_ractors
    for symbol, line in declarations():
        since = (3, 0) if "_ractor_" in symbol else SINCE.get(symbol, (2, 7))
        if version < since:
            continue
        lines.append(f"#undef {symbol}")
        if symbol not in UNDECLARED:
            lines.append(f"static void *has_{symbol} = (void *)&{symbol};")
        lines.append(line)
    for _, value, theirs in enumerators():
        lines.append(f'_Static_assert({value} == (int){theirs}, "{theirs}");')
    lines += [
        '_Static_assert(Qfalse == 0, "FALSE_VALUE");',
        "_Static_assert(sizeof(VALUE) == sizeof(unsigned long)"
        ' && sizeof(ID) == sizeof(unsigned long), "VALUE and ID");',
        '_Static_assert(offsetof(struct RBasic, flags) == 0, "struct basic");',
        '_Static_assert(offsetof(struct RBasic, klass) == 8, "struct basic");',
    ]
    text = "\n".join(lines) + "\n"
    found = compiled(text, *flags.split(), "-Wno-unused")
    assert found == ""
