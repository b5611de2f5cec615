#!/usr/bin/env bash
# The tests with their full counts (hundreds of kills, 100,000 images …), of which
# `make test` runs a seeded twentieth. Takes an hour or more.
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

export RBTRACE_SOAK=1 PYTEST_ADDOPTS="--timeout=3600 ${PYTEST_ADDOPTS-}"
[ $# -gt 0 ] || set -- --all
exec "$REPO/scripts/test.sh" "$@"
