#!/usr/bin/env bash
# Measures what docs/performance.md promises and prints its table. Needs root, and
# a machine that does nothing else meanwhile.
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$REPO"

is_root || die "the benchmarks attach probes: run sudo make bench"
[ -f tests/bench/__main__.py ] || die "there are no benchmarks yet (tests/bench)"
exec .venv/bin/python -m tests.bench "$@"
