"""Checks of this machine and of a process: permissions, features, and remedies."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing

from rbtrace_py.bpf.features import probe_features
from rbtrace_py.errors import NotPermitted, NotRuby, RbtraceError
from rbtrace_py.linux.binaries import mapped_files
from rbtrace_py.linux.btf import Btf
from rbtrace_py.linux.kernel import (
    Kernel,
    effective_capabilities,
    missing_for_bpf,
    missing_of,
    read_kernel,
)
from rbtrace_py.linux.probes import Scan, StateReader, scan_probes
from rbtrace_py.linux.process import USE_HOST_PIDS, Process, host_pid_namespace
from rbtrace_py.linux.ruby_probes import PROVIDER, is_ruby_binary
from rbtrace_py.model.checks import Check, CheckStatus
from rbtrace_py.rubyvm.attach import Attached, attach
from rbtrace_py.rubyvm.layout import Origin
from rbtrace_py.session.probes.hints import is_of_gem, without_gem
from rbtrace_py.session.stacks.ruby_process import SamplingMode
from rbtrace_py.session.stacks.sampling_options import SamplingOptions

_OLDEST_KERNEL = (5, 8)
"""The first Linux with ring buffer maps, which all commands that show events need."""


def checks(pid: int | None = None) -> list[Check]:
    """Check the machine, and a process if ``pid`` is given.

    Errors that a user can fix are not raised: they become failed checks.
    """
    found = list(machine_checks())
    if pid is not None:
        found += process_checks(pid)
    return found


def machine_checks() -> Iterator[Check]:
    """Check what we may do on this machine."""
    kernel = read_kernel()
    capabilities = effective_capabilities()
    yield _kernel(kernel)
    yield _rights(capabilities)
    yield from _bpf_features(capabilities)
    yield _btf(kernel)
    yield _bcc()
    if not missing_for_bpf(capabilities):
        yield _probe_programs()
        yield _stack_walks()
    yield _tracefs(kernel)
    yield _perf_events(kernel, capabilities)
    yield _yama(kernel, capabilities)
    yield _reading(kernel, capabilities)
    yield _lockdown(kernel)
    yield _pid_namespace()


def _kernel(kernel: Kernel) -> Check:
    text = f"Linux {kernel.release} on {kernel.machine}"
    if kernel.version < _OLDEST_KERNEL:
        wanted = ".".join(map(str, _OLDEST_KERNEL))
        return Check("kernel", CheckStatus.FAIL, text, f"Use Linux {wanted} or newer")
    if kernel.machine != "x86_64":
        return Check(
            "kernel",
            CheckStatus.WARN,
            text,
            "Use an x86_64 machine; tracing is not tested elsewhere",
        )
    return Check("kernel", CheckStatus.OK, text)


_GAINS = (
    ({"CAP_BPF", "CAP_PERFMON"}, "probes and BPF stack walks"),
    ({"CAP_SYS_PTRACE"}, "other users' stacks"),
    ({"CAP_CHECKPOINT_RESTORE", "CAP_DAC_READ_SEARCH"}, "other users' probes"),
    ({"CAP_DAC_OVERRIDE"}, "other users' agents"),
)
"""Capabilities, and the features that they add."""


def _rights(capabilities: frozenset[str]) -> Check:
    who = "root" if os.geteuid() == 0 else f"user {os.geteuid()}"
    # An agent only answers its own user and root.
    useful = _GAINS if os.geteuid() == 0 else _GAINS[:-1]
    gains = [
        f"{missing} for {gain}"
        for wanted, gain in useful
        if (missing := missing_of(wanted, capabilities))
    ]
    if not gains:
        return Check("rights", CheckStatus.OK, f"{who}, with the required capabilities")
    more = (
        "This is root in a container: add the capabilities, or run outside"
        if os.geteuid() == 0
        else "Root (sudo) has them all"
    )
    return Check(
        "rights",
        CheckStatus.WARN,
        f"{who}, without the capabilities that some commands need",
        f"Add {'; '.join(gains)}. {more}",
    )


def _bpf_features(capabilities: frozenset[str]) -> Iterator[Check]:
    """Check the kernel's BPF features, which requires permission to use BPF."""
    if missing := missing_for_bpf(capabilities):
        yield Check(
            "BPF",
            CheckStatus.WARN,
            f"not checked without {missing}",
            "Stacks of your own processes, and the agent's commands, need no BPF",
        )
        return
    try:
        features = probe_features()
    except RbtraceError as error:
        yield Check("BPF", CheckStatus.FAIL, str(error), error.hint)
        return
    for name, is_there in features.items():
        yield _feature(name, is_there)


_FEATURES = {
    "uprobe_multi": (
        CheckStatus.WARN,
        "single uprobes: detaching takes about 0.1 s per probe; Linux 6.10 and"
        " newer are fast",
    ),
}


def _feature(name: str, is_there: bool) -> Check:
    if is_there:
        return Check(name, CheckStatus.OK, "available")
    status, advice = _FEATURES.get(
        name,
        (
            CheckStatus.FAIL,
            "The kernel refuses it: use another kernel, or check for a security"
            " module or container that forbids it",
        ),
    )
    return Check(name, status, "not available", advice)


def _btf(kernel: Kernel) -> Check:
    try:
        offset = Btf.load().offset("task_struct.tgid")
    except RbtraceError as error:
        return Check("BTF", CheckStatus.WARN, str(error), error.hint)
    if offset is None:
        return Check(
            "BTF",
            CheckStatus.WARN,
            f"the BTF of {kernel.release} lacks task_struct.tgid",
        )
    return Check("BTF", CheckStatus.OK, "the kernel's types are available")


def _bcc() -> Check:
    from rbtrace_py.bpf.compiler import carries_programs, import_bcc

    try:
        bcc: object = import_bcc()
    except RbtraceError as error:
        status = CheckStatus.WARN if carries_programs() else CheckStatus.FAIL
        return Check("bcc", status, str(error), error.hint)
    return Check("bcc", CheckStatus.OK, f"version {_bcc_version(bcc)}")


def _probe_programs() -> Check:
    """Load the programs that count and time hits, with strings as keys."""
    from rbtrace_py.bpf.attach import choose_attacher
    from rbtrace_py.bpf.group_recorder import GroupShape
    from rbtrace_py.bpf.probe_engine import Engine
    from rbtrace_py.model.recorded_groups import By, RecordedValues

    try:
        attacher = choose_attacher()
        for values in RecordedValues:
            shape = GroupShape(values, By.TEXT, dense=False, series=1, max_keys=1)
            numbers = {"DURATIONS": 0}
            maps, flags = shape.maps(), shape.flags()
            engine = Engine(attacher, None, "values.c", maps, flags, numbers)
            with closing(engine):
                attacher.load(engine.program, "on_hit")
    except RbtraceError as error:
        return Check("probe programs", CheckStatus.FAIL, str(error), error.hint)
    return Check("probe programs", CheckStatus.OK, "load for counts, times and values")


def _stack_walks() -> Check:
    """Load the programs that walk stacks, for each mode with a different program."""
    from rbtrace_py.aggregate.sampling import Statistics
    from rbtrace_py.session.stacks.kernel_stacks import KernelStacks
    from rbtrace_py.session.targets.notes import Notes

    for mode in (SamplingMode.CPU, SamplingMode.WALL, SamplingMode.GVL):
        try:
            options = SamplingOptions(mode=mode)
            KernelStacks(options, False, Statistics(), Notes()).close()
        except RbtraceError as error:
            text = f"mode {mode.value}: {error}"
            return Check("stack walks", CheckStatus.FAIL, text, error.hint)
    return Check("stack walks", CheckStatus.OK, "BPF programs load for every mode")


def _bcc_version(bcc: object) -> str:
    version = getattr(bcc, "__version__", None)
    if version is None:
        import importlib.metadata

        try:
            version = importlib.metadata.version("bcc")
        except importlib.metadata.PackageNotFoundError:
            version = "unknown"
    return str(version)


def _tracefs(kernel: Kernel) -> Check:
    if kernel.tracefs:
        return Check("tracefs", CheckStatus.OK, f"mounted at {kernel.tracefs}")
    return Check(
        "tracefs",
        CheckStatus.WARN,
        "not mounted; --on tracepoint:… and --on syscall:… need it",
        "mount -t tracefs tracefs /sys/kernel/tracing",
    )


def _perf_events(kernel: Kernel, capabilities: frozenset[str]) -> Check:
    level = kernel.perf_event_paranoid
    text = f"kernel.perf_event_paranoid is {level}"
    if level is None:
        return Check(
            "perf events",
            CheckStatus.WARN,
            "not in this kernel",
            "Use a kernel built with CONFIG_PERF_EVENTS",
        )
    if capabilities & {"CAP_PERFMON", "CAP_SYS_ADMIN"} or level < 0:
        return Check("perf events", CheckStatus.OK, f"{text} (no effect for root)")
    return Check(
        "perf events",
        CheckStatus.WARN,
        text,
        "Run as root, or with CAP_PERFMON",
    )


def _yama(kernel: Kernel, capabilities: frozenset[str]) -> Check:
    scope = kernel.yama
    if scope is None:
        return Check("Yama", CheckStatus.OK, "not in this kernel")
    text = f"kernel.yama.ptrace_scope is {scope}"
    if scope == 0 or (scope < 3 and "CAP_SYS_PTRACE" in capabilities):
        return Check("Yama", CheckStatus.OK, text)
    advice = (
        "Process memory stays unreadable until a reboot with a lower setting;"
        " probes can still be traced"
        if scope >= 3
        else "Run as root, or with CAP_SYS_PTRACE, or `sysctl"
        " kernel.yama.ptrace_scope=0`"
    )
    return Check("Yama", CheckStatus.WARN, text, advice)


def _reading(kernel: Kernel, capabilities: frozenset[str]) -> Check:
    """Check whose stacks are readable (dump, top, stacks, record) without BPF."""
    name, scope = "stacks", kernel.yama or 0
    if scope < 3 and "CAP_SYS_PTRACE" in capabilities:
        return Check(name, CheckStatus.OK, "of any process (CAP_SYS_PTRACE)")
    # Without BPF as well, only agents remain, which let in their own user.
    is_failed = scope >= 2 and missing_for_bpf(capabilities)
    status = CheckStatus.FAIL if is_failed else CheckStatus.WARN
    if scope >= 3:
        return Check(name, status, "of no process (Yama)", _AS_PTRACER[3])
    whose = (
        f"of processes of user {os.geteuid()}",
        "only of programs started with `-- COMMAND`",
        "of no process (Yama)",
    )[scope]
    return Check(name, status, f"{whose} (no CAP_SYS_PTRACE)", _AS_PTRACER[scope])


_AS_PTRACER = {
    0: "Run as root, or with CAP_SYS_PTRACE, for other users' processes",
    1: "Run as root, or with CAP_SYS_PTRACE, for other processes",
    2: "Run as root, or with CAP_SYS_PTRACE",
    3: "Reboot with a lower kernel.yama.ptrace_scope",
}
"""Advice by Yama's scope."""


def _lockdown(kernel: Kernel) -> Check:
    mode = kernel.lockdown
    if mode == "confidentiality":
        return Check(
            "lockdown",
            CheckStatus.FAIL,
            "the kernel is locked down for confidentiality: BPF may not read memory",
            "Boot with lockdown=integrity, or without Secure Boot",
        )
    return Check("lockdown", CheckStatus.OK, mode or "not in this kernel, or hidden")


def _pid_namespace() -> Check:
    if host_pid_namespace():
        return Check("pid namespace", CheckStatus.OK, "the machine's own")
    return Check(
        "pid namespace",
        CheckStatus.FAIL,
        "a container's: the kernel uses other pids",
        USE_HOST_PIDS,
    )


def process_checks(pid: int) -> list[Check]:
    """Check the features of process ``pid``, and whether we may use them."""
    try:
        with Process(pid) as process:
            return list(_process(process))
    except RbtraceError as error:
        return [Check(f"process {pid}", CheckStatus.FAIL, str(error), error.hint)]


def _process(process: Process) -> Iterator[Check]:
    yield _target(process)
    scan = scan_probes(process)
    yield _files(scan)
    yield _memory(process)
    yield _stacks(process)
    yield _ruby(process, scan)
    yield _gem(process, scan)


def _target(process: Process) -> Check:
    foreign = process.foreign_namespaces()
    where = f", in other namespaces ({', '.join(foreign)})" if foreign else ""
    text = f"{process.comm}, of user {process.uid}{where}"
    return Check(f"process {process.pid}", CheckStatus.OK, text)


def _files(scan: Scan) -> Check:
    if not scan.problems:
        return Check("files", CheckStatus.OK, f"{len(scan.probes)} probes")
    problem = scan.problems[0]
    return Check(
        "files",
        CheckStatus.WARN,
        f"{len(scan.probes)} probes; {len(scan.problems)} problems,"
        f" first: {problem.path}: {problem.text}",
        "The probes of these files are missing",
    )


def _memory(process: Process) -> Check:
    with StateReader(process) as reader:
        if reader.can_read():
            return Check("memory", CheckStatus.OK, "readable")
    return Check(
        "memory",
        CheckStatus.WARN,
        "not readable: cannot tell whether a probe is being traced",
        "Run as root, or with CAP_SYS_PTRACE; see Yama above",
    )


def _stacks(process: Process) -> Check:
    """Check whether the process's Ruby is known and its layout verified."""
    name = "Ruby stacks"
    try:
        attached = attach(process)
    except NotRuby as error:
        return Check(name, CheckStatus.WARN, str(error), "Only Ruby stacks can be read")
    except NotPermitted as error:
        return Check(name, CheckStatus.WARN, str(error), error.hint or "Run as root")
    except RbtraceError as error:
        return Check(name, CheckStatus.WARN, str(error), error.hint or "Try again")
    return _known_ruby(name, attached)


def _known_ruby(name: str, attached: Attached) -> Check:
    origins = set(attached.layout.origins.values())
    source = Origin.DWARF if Origin.DWARF in origins else Origin.TABLE
    known = f"Ruby {attached.version.text}, layout from {_SOURCES[source]}"
    if attached.symbols is None:
        text = f"{known}; its symbol table was not found: C functions have no names"
        return Check(
            name, CheckStatus.WARN, text, "`rbtrace-py layout PID` shows details"
        )
    return Check(name, CheckStatus.OK, f"{known} and verified in memory")


_SOURCES = {Origin.DWARF: "its debug symbols", Origin.TABLE: "the built-in table"}


def _ruby(process: Process, scan: Scan) -> Check:
    paths = [file.binary.path for file in mapped_files(process)]
    if not any(map(is_ruby_binary, paths)):
        return Check(
            "Ruby",
            CheckStatus.WARN,
            "not a Ruby process",
            "Its USDT probes can still be traced",
        )
    own = [
        probe
        for probe in scan.probes
        if probe.provider == PROVIDER and not probe.binary.is_image
    ]
    if own:
        return Check("Ruby's probes", CheckStatus.OK, f"{len(own)} probes")
    return Check(
        "Ruby's probes",
        CheckStatus.WARN,
        "this Ruby was built without probes (like Debian's 3.3 and later)",
        "require and cmethod cannot be measured; probes of the gem can, and the"
        " agent reports methods, gc, exceptions and objects. Build Ruby with"
        " --enable-dtrace (and systemtap-sdt-dev) for built-in probes",
    )


def _gem(process: Process, scan: Scan) -> Check:
    if hint := without_gem(process, scan):
        text = "no probes from the gem tracepoint-usdt were found"
        return Check("gem", CheckStatus.WARN, text, hint)
    count = sum(map(is_of_gem, scan.probes))
    return Check("gem", CheckStatus.OK, f"{count} probes defined with tracepoint-usdt")
