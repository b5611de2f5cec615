"""The library: profile and trace Ruby processes from a Python program.

``from rbtrace_py import attach, latency, …`` provides the names in ``__all__``. Each
name is imported on first use. docs/library.md has examples. Errors that are not bugs in
the calling program are ``RbtraceError``s, and their ``hint`` names a remedy. The
library prints nothing.
"""

from __future__ import annotations

from rbtrace_py.aggregate.histogram import Distribution
from rbtrace_py.aggregate.methods import MethodGroup, MethodResult
from rbtrace_py.aggregate.profile import Profile
from rbtrace_py.aggregate.results import Group, Result
from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.aggregate.stacks import Row, Share, StackCounts
from rbtrace_py.errors import (
    BadRecording,
    NoSuchProbe,
    NoSuchTarget,
    NotPermitted,
    NotRuby,
    RbtraceError,
    UnknownRuby,
    UsageError,
)
from rbtrace_py.library.inside import (
    Evaluation,
    RubyError,
    attach_agent,
    backtraces,
    detach_agent,
    eval,  # noqa: A004 -- the command's name
    memory,
    probes,
)
from rbtrace_py.library.measuring import (
    Measurement,
    count,
    latency,
    methods,
    values,
)
from rbtrace_py.library.recordings import read_calls, read_recording
from rbtrace_py.library.stacks import (
    Sampler,
    attach,
    count_samples,
    dump,
    dump_core,
    fold,
    formats,
    render,
)
from rbtrace_py.library.streams import (
    EventStream,
    MethodCall,
    calls,
    trace,
)
from rbtrace_py.model.attach import AttachResult, Detached
from rbtrace_py.model.dump import Dump, DumpedFiber, DumpedThread
from rbtrace_py.model.events import Event, RaiseEvent
from rbtrace_py.model.listed_probes import Listed
from rbtrace_py.model.process_state import MemoryUse, ThreadBacktrace
from rbtrace_py.model.recording_meta import Meta
from rbtrace_py.model.stacks import (
    Frame,
    FrameKind,
    RubyThread,
    Sample,
    SampleFlags,
    Stack,
    ThreadState,
)
from rbtrace_py.recording.recording_filters import Filters
from rbtrace_py.recording.sample_recording import Recorded
from rbtrace_py.session.targets.confirmation import NotConfirmed

__all__ = [
    "AttachResult",
    "BadRecording",
    "Detached",
    "Distribution",
    "Dump",
    "DumpedFiber",
    "DumpedThread",
    "Evaluation",
    "Event",
    "EventStream",
    "Filters",
    "Frame",
    "FrameKind",
    "Group",
    "Listed",
    "Measurement",
    "MemoryUse",
    "Meta",
    "MethodCall",
    "MethodGroup",
    "MethodResult",
    "NoSuchProbe",
    "NoSuchTarget",
    "NotConfirmed",
    "NotPermitted",
    "NotRuby",
    "Profile",
    "RaiseEvent",
    "RbtraceError",
    "Recorded",
    "Result",
    "Row",
    "RubyError",
    "RubyThread",
    "Sample",
    "SampleFlags",
    "Sampler",
    "Share",
    "Stack",
    "StackCounts",
    "Statistics",
    "ThreadBacktrace",
    "ThreadState",
    "UnknownRuby",
    "UsageError",
    "attach",
    "attach_agent",
    "backtraces",
    "calls",
    "count",
    "count_samples",
    "detach_agent",
    "dump",
    "dump_core",
    "eval",
    "fold",
    "formats",
    "latency",
    "memory",
    "methods",
    "probes",
    "read_calls",
    "read_recording",
    "render",
    "trace",
    "values",
]
