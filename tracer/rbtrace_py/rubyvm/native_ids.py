"""The kernel thread of each Ruby thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from rbtrace_py.errors import UnreadableMemory
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.system_calls import system_call
from rbtrace_py.rubyvm.values import Values

_PTHREAD_TIDS = (0x2D0, 0x30)
"""Offsets of the kernel's tid in ``struct pthread``: glibc's, musl's (x86-64)."""
_LARGEST_TID = 1 << 22
"""PID_MAX_LIMIT of Linux (include/linux/threads.h)."""

_EPOLL_WAIT = ("epoll_wait", "epoll_pwait", "epoll_pwait2")


def timer_thread(process: Process, data: Iterable[tuple[int, int]]) -> int | None:
    """Return the tid of Ruby's timer thread; None if it is unknown.

    From Ruby 3.3 on, it waits in ``epoll_wait`` for 10 ms, and ends a time slice only
    if nothing interrupts the wait (``timer_thread_polling`` in thread_pthread_mn.c). It
    runs no Ruby code. It is recognized by the buffer of its call, which is a static
    variable of Ruby's.

    Args:
        process: The process.
        data: Writable memory of its Ruby, as (address, size).
    """
    for tid in process.threads():
        call = system_call(process, tid)
        if call is not None and call.name in _EPOLL_WAIT:
            buffer = call.arguments[1]
            if any(start <= buffer < start + size for start, size in data):
                return tid
    return None


class NativeIds:
    """Reads the kernel thread IDs of Ruby threads, given by their addresses.

    Args:
        values: Reader of the VM's memory.
        is_tid: Returns whether the target has a kernel thread with this ID. This
            verifies that a ``pthread_t`` was decoded correctly. None: unknown.
    """

    def __init__(
        self, values: Values, is_tid: Callable[[int], bool] | None = None
    ) -> None:
        self._values = values
        self._offsets = values.offsets
        self._is_tid = is_tid

    def tid(self, address: int) -> int | None:
        """Return the tid of the Ruby thread at ``address``; None if it is unknown.

        Raises UnreadableMemory.
        """
        offsets, values = self._offsets, self._values
        if offsets.th_native_thread is not None and offsets.nt_tid is not None:
            native = values.u64(address + offsets.th_native_thread)
            return (
                self._plausible(values.u32(native + offsets.nt_tid)) if native else None
            )
        if offsets.th_native_id is None:
            return None
        place = address + offsets.th_native_id
        if values.traits.native_id_is_tid:
            return self._plausible(values.u32(place))
        return self._tid_of_pthread(values.u64(place))

    def tids(self, addresses: Sequence[int]) -> list[int | None]:
        """Return the tids of threads whose native threads have tids, with two reads."""
        at, tid = self._offsets.th_native_thread, self._offsets.nt_tid
        assert at is not None
        assert tid is not None
        natives = self._numbers((address + at, 8) for address in addresses)
        known = sorted(set(natives) - {0})
        ids = self._numbers((native + tid, 4) for native in known)
        found = {
            native: self._plausible(number)
            for native, number in zip(known, ids, strict=True)
        }
        return [found.get(native) for native in natives]

    def base(self, address: int) -> int:
        """Return the ``pthread_t`` of the Ruby thread at ``address``; 0 if unknown.

        It precedes the kernel's tid (rb_thread_t in 3.1, rb_native_thread later).
        Raises UnreadableMemory.
        """
        offsets, values = self._offsets, self._values
        if offsets.th_native_thread is not None and offsets.nt_tid is not None:
            native = values.u64(address + offsets.th_native_thread)
            return values.u64(native + offsets.nt_tid - 8) if native else 0
        if offsets.th_native_id is None:
            return 0
        before = 8 if values.traits.native_id_is_tid else 0
        return values.u64(address + offsets.th_native_id - before)

    def _numbers(self, places: Iterable[tuple[int, int]]) -> list[int]:
        parts = self._values.memory.gather(list(places))
        return [int.from_bytes(part, "little") for part in parts]

    def _tid_of_pthread(self, pthread: int) -> int | None:
        place = self._tid_place(pthread)
        return self._plausible(self._values.u32(place)) if place else None

    def _tid_place(self, pthread: int) -> int | None:
        """Return the address of a tid known to the kernel in ``struct pthread``."""
        for offset in _PTHREAD_TIDS if pthread > 4096 else ():
            try:
                if self._plausible(self._values.u32(pthread + offset)) is not None:
                    return pthread + offset
            except UnreadableMemory:
                continue
        return None

    def _plausible(self, tid: int) -> int | None:
        if not 0 < tid <= _LARGEST_TID:
            return None
        return tid if self._is_tid is None or self._is_tid(tid) else None

    def places(self, address: int) -> Iterator[tuple[int, int]]:
        """Yield the memory that determines a thread's native thread."""
        offsets, values = self._offsets, self._values
        if offsets.th_native_thread is not None and offsets.nt_tid is not None:
            yield address + offsets.th_native_thread, 8
            native = values.u64(address + offsets.th_native_thread)
            if native > 4096:
                yield native + offsets.nt_tid, 4
        elif offsets.th_native_id is not None:
            yield address + offsets.th_native_id, 8
            if not values.traits.native_id_is_tid:
                pthread = values.u64(address + offsets.th_native_id)
                place = self._tid_place(pthread)
                yield from [(place, 4)] if place else []
