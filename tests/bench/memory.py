"""Memory of sampling a program whose stacks rarely repeat; called by stacks.py.

    python memory.py ENGINE THREADS RATE SAMPLES

Prints a JSON object: bytes of resident memory after each tenth of the samples, and the
counts of samples and stacks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from rbtrace_py.aggregate.stacks import StackCounts
from rbtrace_py.session.drive import turns
from rbtrace_py.session.limits import Limits
from rbtrace_py.session.stacks.sampling import Sampling
from rbtrace_py.session.stacks.sampling_options import EngineChoice, SamplingOptions
from rbtrace_py.session.stacks.sampling_passes import sampling_passes
from rbtrace_py.session.targets.targets import Targets

WANDER = Path(__file__).resolve().parent / "ruby" / "wander.rb"


def main() -> None:
    engine, threads, rate, most = sys.argv[1:]
    samples = int(most)
    options = SamplingOptions(rate=float(rate), engine=EngineChoice(engine))
    words = ["ruby", str(WANDER), threads]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as target:
        assert target.stdout
        target.stdout.readline()
        targets = Targets.from_pids([target.pid])
        marks: list[tuple[int, int]] = []
        with closing(targets), Sampling(targets, options) as sampling:
            statistics = sampling.statistics
            counts = StackCounts(statistics)
            passes = sampling_passes(sampling, counts.add)
            for _ in turns(passes, Limits(count=samples)):
                if passes.seen >= samples * (len(marks) + 1) // 10:
                    marks.append((passes.seen, _resident()))
        target.kill()
    found = {"rows": len(counts), "other": statistics.other, "marks": marks}
    print(json.dumps({**found, "failed": statistics.failed}))


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


main()
