"""The GVLs of a process: their queues and holders."""

from __future__ import annotations

from collections.abc import Sequence

from rbtrace_py.errors import UnreadableMemory
from rbtrace_py.model.stack_walk import HeldGvl
from rbtrace_py.rubyvm.threads import MOST_THREADS, VmThread
from rbtrace_py.rubyvm.values import Values


class Gvls:
    """Reads the GVLs, one per ractor; up to 2.7 one per process."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._offsets = values.offsets

    def waiters(self, threads: Sequence[VmThread]) -> set[int]:
        """Return the addresses of threads that are in the queue for a GVL.

        This includes threads after a sleep or a system call, whose status still says
        that they sleep. The set is empty if the layout lacks the offsets.
        """
        node = self._offsets.th_gvl_node
        if node is None:
            return set()
        known = {thread.address for thread in threads}
        heads = {self._queue(thread) for thread in threads} - {0}
        return {one - node for head in heads for one in self._queued(head)} & known

    def _queue(self, thread: VmThread) -> int:
        """Return the address of the head of the queue for a thread's GVL, or 0."""
        offsets = self._offsets
        base = offsets.ractor_running_ec
        if not self._values.traits.has_ractors:
            base = offsets.vm_running_thread
        if offsets.gvl_queue is None or base is None or not thread.running:
            return 0
        return thread.running - base + offsets.gvl_queue

    def of_holder(self, thread: VmThread) -> HeldGvl:
        """Return the GVL of a thread that holds it."""
        head = self._queue(thread)
        return HeldGvl(head, len(self._queued(head)) if head else 0)

    def holders(self, threads: Sequence[VmThread]) -> dict[int, int]:
        """Return the address of the thread that holds the GVL of each ractor, or 0.

        The GVL's own word is used, because the ractor's running thread is still the
        former one until a new thread is interrupted. The dict is empty if the layout
        lacks the offsets.
        """
        base, offset = self._offsets.ractor_running_ec, self._offsets.gvl_holder
        if base is None or offset is None:
            return {}
        known = {one.address for one in threads}
        found: dict[int, int] = {}
        for one in threads:
            try:
                holder = self._values.u64(one.running - base + offset)
            except UnreadableMemory:
                continue
            found[one.ractor] = holder if holder in known else 0
        return found

    def ractors(self, threads: Sequence[VmThread]) -> dict[int, int]:
        """Return the numbers of the ractors of these threads, by address."""
        base = self._offsets.ractor_running_ec
        if base is None:
            return {}
        return {one.running - base: one.ractor for one in threads}

    def _queued(self, head: int) -> list[int]:
        """Return the nodes of a list_head, which may change meanwhile.

        A node that was removed meanwhile refers to itself.
        """
        found: dict[int, None] = {}
        try:
            place = self._values.u64(head)
            while place != head and place >= 4096 and len(found) < MOST_THREADS:
                if place in found:
                    break
                found[place] = None
                place = self._values.u64(place)
        except UnreadableMemory:
            pass
        return list(found)
