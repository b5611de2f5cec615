"""Addresses of the functions that load code into a Ruby process."""

from __future__ import annotations

from contextlib import closing

from rbtrace_py.agent.addresses import RubyAddresses
from rbtrace_py.agent.refusal import filters_of
from rbtrace_py.errors import VmNotStarted
from rbtrace_py.linux.memory import ProcessMemory
from rbtrace_py.linux.process import Process, parse_status
from rbtrace_py.rubyvm.detect import Ruby, find_ruby
from rbtrace_py.rubyvm.mining import addresses_in
from rbtrace_py.rubyvm.roots import find_vm


def ruby_addresses(process: Process) -> RubyAddresses:
    """Return the addresses of the functions in the Ruby that ``process`` runs.

    Raises:
        NotRuby, UnknownRuby, NotPermitted, NoSuchTarget, UnreadableMemory
    """
    # Read these first: then a later exec or filter is noticed before any change.
    program = process.program
    filters = filters_of(parse_status(process.read("status")))
    with closing(find_ruby(process)) as ruby:
        return RubyAddresses(
            vm=_vm(process, ruby),
            eval_string=ruby.address("rb_eval_string"),
            register_one=ruby.address("rb_postponed_job_register_one"),
            preregister=ruby.address("rb_postponed_job_preregister"),
            trigger=ruby.address("rb_postponed_job_trigger"),
            job_tables=addresses_in(ruby, "rb_postponed_job_preregister"),
            current_ec=ruby.address("ruby_current_execution_context_ptr"),
            code=tuple((m.start, m.end) for m in ruby.file.file.executable),
            filters=filters,
            program=program,
        )


def _vm(process: Process, ruby: Ruby) -> int:
    try:
        return find_vm(ProcessMemory(process.pid, process), ruby).address
    except VmNotStarted:
        return 0
