#!/usr/bin/env bash
# Measures what docs/performance.md tells and prints its table. Needs root, and
# is best run on a machine that does nothing else meanwhile.
#
#   scripts/bench.sh [--quick] [--json] [--only PART]...
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$REPO"

is_root || die "the benchmarks attach probes: run sudo make bench"
exec "$VENV/bin/python" tests/bench/run.py "$@"
