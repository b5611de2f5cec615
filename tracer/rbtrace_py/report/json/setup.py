"""JSON of ``probes``, ``doctor``, and ``layout`` (docs/formats/setup.md)."""

from __future__ import annotations

from collections.abc import Sequence

from rbtrace_py.model.checks import Check
from rbtrace_py.model.listed_probes import Listed
from rbtrace_py.model.vm_layout import VmDescription
from rbtrace_py.report.json.serializer import Document, fields, head


def probes_document(pids: Sequence[int], probes: Sequence[Listed]) -> Document:
    """Return the document of ``probes``."""
    return {
        **head("probes"),
        "pids": pids,
        "probes": [_probe(listed) for listed in probes],
    }


def doctor_document(pid: int | None, checks: Sequence[Check]) -> Document:
    """Return the document of ``doctor``.

    Args:
        pid: Process that was checked, or None if only the machine was.
        checks: Results of the checks.
    """
    return {
        **head("doctor"),
        "pid": pid,
        "checks": [fields(c, "status", "name", "text", "advice") for c in checks],
    }


def layout_document(described: VmDescription) -> Document:
    """Return the document of ``layout``."""
    return {
        **head("layout"),
        **fields(described, "pid", "ruby_version", "version_origin"),
        **fields(described, "file", "build_id", "base"),
        "vm": {"address": described.vm, "origin": described.vm_origin},
        "symbols": None
        if described.symbols is None
        else {"address": described.symbols, "origin": described.symbols_origin},
        "traits": described.traits,
        "offsets": [
            fields(offset, "name", "member", "offset", "origin", "is_confirmed")
            for offset in described.offsets
        ],
        "notes": described.notes,
    }


def _probe(listed: Listed) -> Document:
    probe, traced, pids = listed
    return {
        **fields(probe, "provider", "name", "role"),
        "span": probe.span_name,
        "method": probe.method,
        "file": probe.binary.path,
        "sites": len(probe.sites),
        "pids": pids,
        "traced": traced,
        "arguments": [
            fields(operand, "name", "type", "role", "size", "signed")
            for operand in probe.operands
        ],
    }
