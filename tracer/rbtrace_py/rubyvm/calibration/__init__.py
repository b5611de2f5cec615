"""A layout learnt from the binary itself: run it, with values that are known.

The last source, and one that needs nothing but the binary: a script of ours makes
threads, frames and methods whose VALUEs it tells, and they are searched for in its
memory. It is run with never more rights than the target has (``linux.sandbox``).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

from rbtrace_py.errors import NoSuchTarget, NotPermitted, RbtraceError, UnknownRuby
from rbtrace_py.linux.cache import content_hash
from rbtrace_py.linux.memory import ProcessMemory
from rbtrace_py.linux.process import Process, parse_status
from rbtrace_py.linux.sandbox import Sandboxed, run_as
from rbtrace_py.rubyvm import layouts
from rbtrace_py.rubyvm.calibration.cache import key_of, load, store
from rbtrace_py.rubyvm.calibration.frames import FrameSearch
from rbtrace_py.rubyvm.calibration.given import Found, Given, View, failed, parse
from rbtrace_py.rubyvm.calibration.iseqs import IseqSearch
from rbtrace_py.rubyvm.calibration.objects import ClassSearch, Strings, find_symbols
from rbtrace_py.rubyvm.calibration.script import SCRIPT
from rbtrace_py.rubyvm.calibration.threads import DEEP, ThreadSearch
from rbtrace_py.rubyvm.detect import Ruby, Version, find_ruby
from rbtrace_py.rubyvm.layout import Layout, Offsets, Origin, Traits
from rbtrace_py.rubyvm.mining import mine_flag
from rbtrace_py.rubyvm.roots import find_symbols as find_symbol_table
from rbtrace_py.rubyvm.roots import find_vm

_SECONDS = 8
_LARGEST = 1 << 28
"""Bytes of the file with the VM."""
_MOST_LINES = 200
_ARGUMENTS = ("ruby", "--disable-gems", "-W0", "-e", SCRIPT)
_RUBY_NAME = re.compile(r"ruby[-\d.]*")


def calibrate(
    process: Process, ruby: Ruby, version: Version, use_cache: bool = True
) -> Layout:
    """Return the layout of the Ruby of ``process``, from the cache or by running it.

    Raises UnknownRuby if something was not found, NotPermitted if it may not be run.
    """
    key = key_of(process, ruby, version)
    layout = None if key is None or not use_cache else load(key)
    if layout is None:
        layout = run(process, ruby, version)
        if key is not None:
            store(key, layout)
    return layout


def run(process: Process, ruby: Ruby, version: Version) -> Layout:
    """Run the binary and search its memory; raises as ``calibrate`` does."""
    _refuse_others(process, ruby)
    problem: RbtraceError | None = None
    for preload in (None, ruby.file.fd):
        try:
            with run_as(process, _ARGUMENTS, preload) as sandboxed:
                return _calibrate(sandboxed, ruby, version)
        except (UnknownRuby, NotPermitted):
            raise
        except RbtraceError as error:
            problem = error
    raise failed(str(problem)) from problem


def _refuse_others(process: Process, ruby: Ruby) -> None:
    """Only what is called ruby is run: a program with a Ruby inside may do anything."""
    name = (process.exe or "").removesuffix(" (deleted)").rsplit("/", 1)[-1]
    if not _RUBY_NAME.fullmatch(name):
        raise failed(
            f"{name or 'its program'} is not Ruby's own program, so it is not run"
        )


def _calibrate(sandboxed: Sandboxed, ruby: Ruby, version: Version) -> Layout:
    memory = ProcessMemory(sandboxed.pid)
    given = parse(_lines(sandboxed), memory)
    with Process(sandboxed.pid) as itself, closing(find_ruby(itself)) as own:
        if _contents(own) != _contents(ruby):
            raise RbtraceError("it runs with another libruby than the target")
        vm = find_vm(memory, own)
        symbols = find_symbol_table(memory, own)
        if symbols is None:
            raise failed("the table of symbols was not found")
        return _search(
            View(memory),
            given,
            vm.address,
            symbols.address,
            _inner_tids(itself),
            own,
            version,
        )


def _contents(ruby: Ruby) -> str | None:
    return content_hash(ruby.file.fd, _LARGEST)


def _lines(sandboxed: Sandboxed) -> Iterator[bytes]:
    deadline = time.monotonic() + _SECONDS
    for _ in range(_MOST_LINES):
        yield sandboxed.read_line(deadline)


def _inner_tids(process: Process) -> list[int]:
    """Kernel thread ids, as the process itself sees them."""
    tids = []
    for tid in process.threads():
        try:
            status = parse_status(process.read(f"task/{tid}/status"))
        except NoSuchTarget:
            continue
        words = status.get("NSpid", str(tid)).split()
        tids.append(int(words[-1]))
    return tids


def _search(
    view: View,
    given: Given,
    vm: int,
    symbols: int,
    tids: list[int],
    ruby: Ruby,
    version: Version,
) -> Layout:
    traits = _known_traits(version)
    strings = Strings(view, given)
    threads = ThreadSearch(view, given, strings, vm).run(tids)
    iseqs = IseqSearch(view, given, strings).run()
    deep = threads.contexts[DEEP]
    frames = FrameSearch(view, given, iseqs, deep, traits).run()
    classes = ClassSearch(view, given, strings).run()
    names, shift = find_symbols(view, given, strings, symbols)
    flag = mine_flag(ruby)
    found: Found = {}
    for part in (threads.found, iseqs.found, frames.found, classes.found, names, flag):
        found.update(part)
    traits = replace(
        traits,
        line_table=iseqs.line_table,
        class_path=classes.style,
        string_style=strings.style,
        has_ractors=threads.has_ractors,
        first_line_is_fixnum=iseqs.first_line_is_fixnum,
        native_id_is_tid=threads.native_id_is_tid,
        qnil=given.values["nil"],
        singleton_bit=classes.singleton_bit,
        iseq_imemo=iseqs.kind,
        ment_imemo=frames.ment_imemo,
        symbol_shift=shift,
    )
    return _layout(version, traits, found, set(flag))


def _known_traits(version: Version) -> Traits:
    """Those of the version, or of the nearest: most are then measured."""
    minor = layouts.nearest(version.minor)
    return layouts.table_for("{}.{}".format(*minor)).traits


def _layout(version: Version, traits: Traits, found: Found, mined: set[str]) -> Layout:
    values: dict[str, int | None] = dict.fromkeys(layouts.OFFSETS)
    values.update(found)
    origins = {
        name: Origin.MINED if name in mined else Origin.CALIBRATED for name in found
    }
    offsets = Offsets(**values)  # type: ignore[arg-type]
    return Layout(version.text, traits, offsets, origins)
