#!/usr/bin/env bash
# Runs the tests with their full counts (hundreds of kills, 100,000 images …), of which
# `make test` runs a seeded twentieth, and smoke tests on other kernels. Takes an hour or
# more.
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

export RBTRACE_SOAK=1 PYTEST_ADDOPTS="--timeout=3600 ${PYTEST_ADDOPTS-}"
[ $# -gt 0 ] || set -- --all
status=0
"$REPO/scripts/test.sh" "$@" || status=$?
[ "$*" = --all ] || exit $status
if is_root && have qemu-system-x86_64 && have cpio && have mmdebstrap; then
  for kernel in 5.10 6.1; do "$REPO/scripts/guest.sh" "$kernel" || status=$?; done
else
  warn "tests on other kernels are left out: they need root, qemu-system-x86, cpio, mmdebstrap"
fi
exit $status
