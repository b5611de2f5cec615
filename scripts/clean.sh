#!/usr/bin/env bash
# Removes everything that setup and the tests built in this checkout. System packages
# and the chroots of scripts/rubies.sh stay.
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$REPO"
if have make && [ -f ext/libstapsdt/Makefile ]; then
  make -s -C ext/libstapsdt clean
fi
rm -rf .venv .setup build dist site ruby/lib/tracepoint/native \
  .pytest_cache .mypy_cache .ruff_cache .hypothesis
find tracer tests -name __pycache__ -type d -prune -exec rm -rf {} +
rm -rf tracer/*.egg-info gem/*.gem gem/pkg
