"""Options of ``stacks --calls``."""

from __future__ import annotations

from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common import rendering as r
from rbtrace_py.cli.common import sampling as s
from rbtrace_py.cli.common.on_events import OnOptions
from rbtrace_py.cli.common.selecting import SelectingOptions


class FoldingOptions(
    OnOptions,
    s.LossOptions,
    r.ReportingOptions,
    o.IntervalOptions,
    SelectingOptions,
    o.AttachOption,
    o.YesOption,
    r.ReportOutputOption,
):
    """Options of ``stacks --calls``."""
