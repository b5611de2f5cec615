"""JSON of ``probes``, ``doctor``, and ``layout`` (docs/formats/setup.md)."""

from __future__ import annotations

from collections.abc import Sequence

from rbtrace_py.model.checks import Check
from rbtrace_py.model.listed_probes import Listed
from rbtrace_py.model.probes import Operand, OperandRole
from rbtrace_py.model.vm_layout import VmDescription
from rbtrace_py.report.json.serializer import Document, head


def probes_document(pids: Sequence[int], probes: Sequence[Listed]) -> Document:
    """Return the document of ``probes``; a traced state of None could not be read."""
    return {
        **head("probes"),
        "pids": list(pids),
        "probes": [_probe(listed) for listed in probes],
    }


def doctor_document(pid: int | None, checks: Sequence[Check]) -> Document:
    """Return the document of ``doctor``; pid None: the machine alone."""
    return {
        **head("doctor"),
        "pid": pid,
        "checks": [
            {
                "status": check.status,
                "name": check.name,
                "text": check.text,
                "advice": check.advice,
            }
            for check in checks
        ],
    }


def layout_document(described: VmDescription) -> Document:
    """JSON of ``layout``."""
    return {
        **head("layout"),
        "pid": described.pid,
        "ruby_version": described.ruby_version,
        "version_origin": described.version_origin,
        "file": described.file,
        "build_id": described.build_id,
        "base": described.base,
        "vm": {"address": described.vm, "origin": described.vm_origin},
        "symbols": None
        if described.symbols is None
        else {"address": described.symbols, "origin": described.symbols_origin},
        "traits": dict(described.traits),
        "offsets": [
            {
                "name": offset.name,
                "member": offset.member,
                "offset": offset.offset,
                "origin": offset.origin,
                "confirmed": offset.is_confirmed,
            }
            for offset in described.offsets
        ],
        "notes": list(described.notes),
    }


def _probe(listed: Listed) -> Document:
    probe, traced, pids = listed
    return {
        "provider": probe.provider,
        "name": probe.name,
        "role": probe.role.name.lower(),
        "span": probe.span_name,
        "method": probe.method,
        "file": probe.binary.path,
        "sites": len(probe.sites),
        "pids": list(pids),
        "traced": traced,
        "arguments": [_operand(operand) for operand in probe.operands],
    }


def _operand(operand: Operand) -> Document:
    role = operand.role
    return {
        "name": operand.name,
        "type": operand.type.name.lower(),
        "role": "unknown" if role is OperandRole.UNKNOWN else role.name.lower(),
        "size": operand.size,
        "signed": operand.signed,
    }
