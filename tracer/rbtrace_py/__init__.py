"""Profile and trace running Ruby processes: USDT probes, latencies, stacks.

The library's names, listed in ``rbtrace_py.library``, are imported on first use:

    from rbtrace_py import attach

    with attach(1234) as ruby:
        for sample in ruby.samples(seconds=1):
            print(sample.thread.name, sample.stack.frames[-1].name)
"""

from __future__ import annotations

# The command also starts here. Avoid imports that it does not need, even ``typing``:
# they take time, and Ctrl-C is not handled yet.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from rbtrace_py.library import *  # noqa: F403
else:

    def __getattr__(name: str) -> object:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import rbtrace_py.library as library

        names = [*library.__all__, "__version__"]
        if name not in ("__all__", *names):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = names if name == "__all__" else getattr(library, name)
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return sorted(__getattr__("__all__"))


__version__ = "0.2.0"
