#!/usr/bin/env bash
# Measures the figures of docs/performance.md and prints its table. Needs root, and
# an otherwise idle machine.
#
#   scripts/bench.sh [--quick] [--json] [--only PART]...
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$REPO"

is_root || die "the benchmarks attach probes: run sudo make bench"
exec "$VENV/bin/python" tests/bench/run.py "$@"
