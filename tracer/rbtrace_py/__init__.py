"""Look into running Ruby processes: USDT probes, latencies, stacks.

As a library it has what ``rbtrace_py.library`` lists, imported when it is first used:

    from rbtrace_py import attach

    with attach(1234) as ruby:
        for sample in ruby.samples(seconds=1):
            print(sample.thread.name, sample.stack.frames[-1].name)
"""

from __future__ import annotations

# The command starts here too: it has no time for what it does not need, ``typing``
# included, and no answer yet to a Ctrl-C.
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
