"""The causes of waits, from the VM and the kernel.

The VM provides the lock, queue, or thread. The kernel provides the descriptor, child,
or native lock. If both describe the same wait, the more exact description counts. If
neither does, the wait is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from rbtrace_py.linux.system_calls import Awaited
from rbtrace_py.model.stacks import RubyThread, ThreadState
from rbtrace_py.model.waits import Descriptor, Wait, Waiter, WaitKind
from rbtrace_py.rubyvm.fibers import Fiber
from rbtrace_py.rubyvm.threads import VmThread
from rbtrace_py.rubyvm.values import Values
from rbtrace_py.rubyvm.vm import ControlFrame
from rbtrace_py.rubyvm.waits.calls import RESOLVERS
from rbtrace_py.rubyvm.waits.gvls import Gvls
from rbtrace_py.rubyvm.waits.ruby_waits import RubyWait, RubyWaits
from rbtrace_py.session.stacks.kernel_waits import KernelWaits
from rbtrace_py.session.stacks.ruby_process import state_of

_VM_KNOWS = (
    WaitKind.MUTEX,
    WaitKind.QUEUE,
    WaitKind.CONDITION,
    WaitKind.THREAD,
    WaitKind.RACTOR,
    WaitKind.SLEEP,
)
"""Kinds of waits about which the kernel has no further information."""
_INTERNAL = ("anon_inode:[eventfd]",)
"""Descriptors with which Ruby wakes its own threads."""


class Seen(NamedTuple):
    """A thread, and its state and fiber when its stack was read.

    Attributes:
        frames: Its control frames, the newest first.
        fibers: Its suspended fibers, if they were read.
    """

    thread: VmThread
    state: ThreadState
    fiber: int
    frames: Sequence[ControlFrame] = ()
    fibers: tuple[Fiber, ...] = ()


class Waits:
    """Joins the information of the VM and the kernel.

    Args:
        values: Reads the VM's values.
        seen: The threads.
        threads: The threads for the report, by address.
        kernel: The kernel's information; None: a core file.
    """

    def __init__(
        self,
        values: Values,
        seen: Sequence[Seen],
        threads: Mapping[int, RubyThread],
        kernel: KernelWaits | None,
    ) -> None:
        self.threads = threads
        self._ruby = RubyWaits(values)
        self._kernel = kernel
        self._seen = {one.thread.address: one for one in seen}
        # The owner of a native lock is an id of the target's own namespace.
        self._by_tid = {one.thread.tid: one.thread.address for one in seen}
        vm_threads = [one.thread for one in seen]
        gvls = Gvls(values)
        self._ractors = gvls.ractors(vm_threads)
        queued = self._queued = gvls.waiters(vm_threads)
        self._gvl_holders = {
            one.thread.ractor: one.thread.address
            for one in seen
            if one.state is ThreadState.RUNNING and one.thread.address not in queued
        } | gvls.holders(vm_threads)
        waiting = {
            one.thread.address for one in seen if one.state is ThreadState.WAITING
        }
        self._gvl_waiters = (queued | waiting) - set(self._gvl_holders.values())

    def state(self, address: int, on_cpu: bool | None) -> ThreadState:
        """Return a thread's state, from the VM, its GVL's queue, and the kernel.

        Up to 3.1, a thread in the queue wakes up regularly, to act as the timer.
        """
        if address in self._queued & self._gvl_waiters:
            return ThreadState.WAITING
        state = self._seen[address].state
        if state is ThreadState.WAITING and address not in self._gvl_waiters:
            state = ThreadState.RUNNING
        return state_of(state, on_cpu)

    def of_thread(
        self, address: int, state: ThreadState, frames: Sequence[ControlFrame]
    ) -> Wait | None:
        """Return a thread's wait; None: it runs or is runnable.

        Args:
            address: Address of the thread.
            state: Result of ``state``.
            frames: Its control frames, the newest first.
        """
        if state is ThreadState.WAITING:
            return self._for_gvl(self._seen[address])
        if state is ThreadState.RUNNING:
            return None
        if self._is_exiting(address):
            return Wait(WaitKind.EXIT)
        ruby = self._ruby.of_thread(address, frames)
        is_asleep = self._seen[address].state is ThreadState.SLEEPING
        if ruby is not None and ruby.autoload and not is_asleep:
            ruby = None  # it holds the GVL and waits in the kernel
        return _but_its_own(self._of(ruby, self.threads[address].tid), address)

    def of_fiber(self, frames: Sequence[ControlFrame]) -> Wait | None:
        """Return the wait of a suspended fiber in a scheduler; None: unknown."""
        ruby = self._ruby.of_fiber(frames)
        return None if ruby is None else self._of(ruby, None)

    def gvl_waiters(self, address: int) -> int:
        """Return the number of threads that wait for the GVL that this one holds."""
        ractor = self._seen[address].thread.ractor
        if self._gvl_holders.get(ractor) != address:
            return 0
        return sum(
            self._seen[waiter].thread.ractor == ractor for waiter in self._gvl_waiters
        )

    def _is_exiting(self, address: int) -> bool:
        """Return whether the main thread has ended before other threads.

        After at_exit blocks, it is marked as killed. Then it kills the other threads
        and waits for them (rb_ec_cleanup of eval.c). No other status becomes UNKNOWN.
        """
        seen = self._seen[address]
        is_killed = seen.state is ThreadState.UNKNOWN
        return is_killed and seen.thread.is_main and len(self._seen) > 1

    def _for_gvl(self, seen: Seen) -> Wait:
        holder = self._gvl_holders.get(seen.thread.ractor)
        known = self._waiter_of(holder) if holder else None
        return Wait(WaitKind.GVL, holder=known)

    def _of(self, ruby: RubyWait | None, tid: int | None) -> Wait:
        word = None if self._kernel is None else self._kernel.of(tid)
        if ruby is not None and ruby.kind in _VM_KNOWS:
            return self._of_ruby(ruby)
        if ruby is None:
            ruby = RubyWait(WaitKind.UNKNOWN, "")
        if word is None:
            return self._without_kernel(ruby)
        call, what = word
        found = self._of_kernel(ruby, what)
        if found.kind is WaitKind.UNKNOWN and call.name not in ("", "restart_syscall"):
            found = replace(found, kind=WaitKind.SYSTEM_CALL)
        is_named = found.kind in (WaitKind.SYSTEM_CALL, WaitKind.UNKNOWN)
        name = call.name or f"number {call.number}"
        return replace(
            found,
            system_call=name if is_named else "",
            native=self._native(ruby.call, found.descriptors),
        )

    def _native(self, call: str, own: Sequence[Descriptor]) -> tuple[Descriptor, ...]:
        """Return the sockets of native resolver threads, for methods that use them."""
        if call not in RESOLVERS or any(not one.other_ends for one in own):
            return ()
        assert self._kernel is not None
        return self._kernel.native_waits({one.tid for one in self.threads.values()})

    def _of_ruby(self, ruby: RubyWait) -> Wait:
        return Wait(
            ruby.kind,
            ruby.call,
            object=ruby.object,
            class_name=ruby.class_name,
            holder=self._waiter(ruby),
            is_free=ruby.is_free,
            length=ruby.length,
            limit=ruby.limit,
            waiting=ruby.waiting,
            seconds=ruby.seconds,
            is_forever=ruby.is_forever,
            path=ruby.path,
            ractor=self._ractors.get(ruby.ractor),
        )

    def _loader(self, constant: int) -> Waiter | None:
        """Return the only thread that loads a constant; None: not one, or unknown."""
        loading = {
            address: self._ruby.loads(one.frames, constant)
            for address, one in self._seen.items()
        }
        found = [address for address, loads in loading.items() if loads]
        is_sure = len(found) == 1 and None not in loading.values()
        return self._waiter_of(found[0]) if is_sure else None

    def _waiter(self, ruby: RubyWait) -> Waiter | None:
        if ruby.autoload:
            return self._loader(ruby.autoload)
        thread = self.threads.get(ruby.owner)
        if thread is None:
            return None
        seen = self._seen[ruby.owner]
        if ruby.owner_serial:
            fiber = self._ruby.fiber_of(ruby.owner_serial, seen.fibers)
            return Waiter(thread, fiber, is_suspended=True)
        current = seen.fiber
        fiber = ruby.owner_fiber or current
        return Waiter(thread, fiber, fiber != current, ruby.has_ended)

    def _without_kernel(self, ruby: RubyWait) -> Wait:
        found = self._of_ruby(ruby)
        if ruby.fd is not None:
            return replace(found, descriptors=(self._descriptor(ruby.fd, ""),))
        if ruby.kind is WaitKind.CHILD:
            return self._of_child(found, ruby.pid)
        return found

    def _descriptor(self, number: int, action: str) -> Descriptor:
        if self._kernel is None:
            return Descriptor(number, action)
        return self._kernel.descriptor(number, action)

    def _of_child(self, found: Wait, pid: int | None) -> Wait:
        children_ = () if self._kernel is None else self._kernel.children(pid)
        return replace(
            found, kind=WaitKind.CHILD, children=children_, is_any_child=pid == 0
        )

    def _of_kernel(self, ruby: RubyWait, what: Awaited) -> Wait:
        """Return the kernel's wait; ``ruby`` has the method and maybe a descriptor."""
        found = self._of_ruby(ruby)
        if what.pid is not None:
            return self._of_child(found, what.pid)
        if what.action == "open":
            return replace(found, kind=WaitKind.OPEN, path=what.path)
        if what.action == "lock":
            return self._of_file_lock(found, what.descriptors[0][0])
        if what.lock:
            return self._of_native_lock(found, what)
        is_process_wait = ruby.kind is WaitKind.CHILD and ruby.call.startswith(
            "Process"
        )
        if what.descriptors and not is_process_wait:
            of_io = self._of_io(found, ruby.fd, what.descriptors)
            if of_io.kind is WaitKind.IO:
                return of_io
        if ruby.kind in (WaitKind.CHILD, WaitKind.IO):
            # Up to 3.2 Ruby's own signal handler waits for children.
            return self._without_kernel(ruby)
        if what.action in ("nanosleep", "clock_nanosleep", "pause"):
            return replace(found, kind=WaitKind.SLEEP)
        return found

    def _of_file_lock(self, found: Wait, number: int) -> Wait:
        assert self._kernel is not None
        return replace(
            found,
            kind=WaitKind.FILE_LOCK,
            descriptors=(self._descriptor(number, "lock"),),
            processes=self._kernel.lock_holders(number),
        )

    def _of_native_lock(self, found: Wait, what: Awaited) -> Wait:
        address = self._by_tid.get(what.owner)
        holder = None if address is None else self._waiter_of(address)
        return replace(found, kind=WaitKind.NATIVE_LOCK, lock=what.lock, holder=holder)

    def _waiter_of(self, address: int) -> Waiter:
        return Waiter(self.threads[address], self._seen[address].fiber)

    def _of_io(
        self, found: Wait, fd: int | None, waited: Sequence[tuple[int, str]]
    ) -> Wait:
        """Return a wait for I/O, on the receiver's descriptor alone if it is awaited.

        Ruby adds the descriptors with which it wakes its own threads.
        """
        ours = [(number, action) for number, action in waited if number == fd]
        described = [self._descriptor(*one) for one in ours or waited]
        theirs = [one for one in described if one.target not in _INTERNAL]
        if not theirs and found.kind is not WaitKind.IO:
            return found
        return replace(found, kind=WaitKind.IO, descriptors=tuple(theirs or described))


def _but_its_own(wait: Wait, address: int) -> Wait:
    """Remove the holder if the thread acquired the Mutex after its stack was read.

    A thread cannot wait for a Mutex that it holds: Ruby raises ThreadError.
    """
    holder = wait.holder
    if wait.kind is not WaitKind.MUTEX or holder is None or holder.is_suspended:
        return wait
    return replace(wait, holder=None) if holder.thread.address == address else wait
