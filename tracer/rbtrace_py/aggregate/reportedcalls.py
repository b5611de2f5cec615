"""Reported calls of a process: a sink that makes events of its calls."""

from __future__ import annotations

from collections.abc import Callable

from rbtrace_py.aggregate.call_interpreter import HookedProcess
from rbtrace_py.aggregate.calls import (
    CallEvent,
    CallEventKind,
    CallStack,
    ReportedCall,
)
from rbtrace_py.aggregate.callvalues import values_of
from rbtrace_py.model.calls import (
    CALL_VALUES,
    UNKNOWN_METHOD,
    CalledMethod,
    CallKind,
    CallRecord,
)

# Members of an enumeration are slow to look up.
_ENTERED, _RETURNED = CallEventKind.ENTERED, CallEventKind.RETURNED
_LOST = CallEventKind.LOST
_C_ENTRY, _C_RETURN = int(CallKind.C_ENTRY), int(CallKind.C_RETURN)


class ReportedCalls:
    """Sink that makes an event of each call, with names and times of CLOCK_REALTIME.

    Args:
        process: The process.
        method: Returns the method of a method number.
    """

    def __init__(
        self, process: HookedProcess, method: Callable[[int], CalledMethod]
    ) -> None:
        self._process = process
        self._method = method

    def entered(self, stack: CallStack, call: CallRecord) -> ReportedCall:
        time, method, depth, kind, flags = call
        event = CallEvent(_ENTERED, stack, time, method, depth, time, kind == _C_ENTRY)
        if flags & CALL_VALUES:
            event.text = stack.texts[depth]
        return self.occurred(event)

    def returned(
        self,
        stack: CallStack,
        call: CallRecord | None,
        end: CallRecord,
        cpu_ns: int | None,
    ) -> ReportedCall:
        time, method, depth, kind, _ = end
        event = CallEvent(
            _RETURNED, stack, time, method, depth, None, kind == _C_RETURN
        )
        event.cpu_ns = cpu_ns
        return self._ended(event, call)

    def ended(self, stack: CallStack, call: CallRecord, time: int) -> ReportedCall:
        _, method, depth, kind, _ = call
        what = CallEventKind.ENDED
        event = CallEvent(what, stack, time, method, depth, None, kind == _C_ENTRY)
        return self._ended(event, call)

    def occurred(self, event: CallEvent) -> ReportedCall:
        """Return an event with names, its times converted to CLOCK_REALTIME."""
        process = self._process
        to_ns, offset = process.scale.to_ns, process.wall_offset
        event.time = to_ns(event.time) + offset
        if event.start is not None:
            event.start = to_ns(event.start) + offset
        has_method = event.what is not _LOST
        method = self._method(event.method) if has_method else UNKNOWN_METHOD
        values = values_of(event.text, process.expressions) if event.text else ()
        return ReportedCall(process.pid, event, method, values)

    def _ended(self, event: CallEvent, call: CallRecord | None) -> ReportedCall:
        """Add what is known from the call's entry."""
        if call is not None:
            stack = event.stack
            event.start, event.is_leaf = call[0], call is stack.leaf
            if call[4] & CALL_VALUES:
                event.text = stack.texts.pop(event.depth, b"")
        return self.occurred(event)
