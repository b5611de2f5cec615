#!/usr/bin/env bash
# Runs every test: the C library's, the gem's, and the tracer's with the
# end-to-end tests. One that fails does not keep the others from running.
#
#   scripts/test.sh               with this machine's Ruby, and a smoke test of the others
#   scripts/test.sh --all         also everything with the others (needs root)
#   scripts/test.sh c ruby …      only these parts: c, ruby, python, install, rubies
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$REPO"

failed=()

# part NAME CMD…
part() {
  local name=$1 start=$SECONDS
  shift
  say "$name"
  if "$@" </dev/null; then
    say "$name: ok, $((SECONDS - start)) s"
  else
    failed+=("$name")
    warn "$name: FAILED, $((SECONDS - start)) s"
  fi
}

test_c() {
  part "C library" make -s -C ext/libstapsdt WERROR=1 test
  if have pkg-config; then
    part "C library, installed" make -s -C ext/libstapsdt test-install
  else
    warn "no pkg-config: the C library's installation is not tested"
  fi
  part "C library with ASan and UBSan" make -s -C ext/libstapsdt test-asan
  if have valgrind; then
    part "C library under valgrind" make -s -C ext/libstapsdt test-valgrind
  else
    warn "no valgrind: that run of the C tests is left out"
  fi
}

# As of the tracer's tests below: what failed stays printed, and wants mending.
gem_tests() {
  "$@" && return 0
  warn "the gem's tests are looked at again, twice"
  "$@" && "$@" || return 1
  warn "DOUBTFUL: the gem's tests failed once, then passed twice"
}

# They take a minute: those that hang say where, and fail.
RUN_GEM_TESTS='timeout --signal=USR1 --kill-after=20 600 ruby -w ruby/test/run.rb'

test_ruby() {
  part "gem" gem_tests sh -c "$RUN_GEM_TESTS"
}

in_ruby() {
  gem_tests scripts/rubies.sh run "$1" sh -c "scripts/build-extension.sh && $RUN_GEM_TESTS"
}

# The chroots hold the Rubies that this machine does not have.
test_rubies() {
  local name version
  if ! is_root; then
    warn "the tests with other Rubies need root: they are left out"
    return 0
  fi
  part "chroots of the other Rubies" scripts/rubies.sh build
  while IFS=$'\t' read -r name version _; do
    part "gem with Ruby $version" in_ruby "$name"
  done < <(scripts/rubies.sh list)
  [ ! -d "${RBTRACE_SHARED:-../shared}/rubies" ] \
    || part "trees built from source" scripts/rubies.sh unpack
  part "tracer with the other Rubies" tracer_tests -m rubies
}

# Some tests look at what real processes do within moments, which the machine's
# other work can disturb. A few that failed are looked at again, each alone and
# several times over. What failed stays printed above, and passing is said to be
# doubtful: such a test, or what it tests, wants mending.
MAX_DOUBTFUL=6
LOOKS_AGAIN=3

tracer_tests() {
  local status=0 test look
  local -a tests
  .venv/bin/python -m pytest --cache-clear "$@" || status=$?
  [ $status -eq 1 ] || return $status # 1: tests failed; the rest is worse
  mapfile -t tests < <(.venv/bin/python -c '
import json, sys
print(*json.load(open(sys.argv[1])), sep="\n")' .pytest_cache/v/cache/lastfailed)
  if [ ${#tests[@]} -eq 0 ] || [ ${#tests[@]} -gt $MAX_DOUBTFUL ]; then
    return $status
  fi
  for test in "${tests[@]}"; do
    for ((look = 0; look < LOOKS_AGAIN; look++)); do
      .venv/bin/python -m pytest -q "$test" || return $status
    done
  done
  for test in "${tests[@]}"; do
    warn "DOUBTFUL: failed once, then passed $LOOKS_AGAIN times alone: $test"
  done
}

test_python() {
  part "tracer and end to end" tracer_tests -m "not rubies and not install"
}

# Into empty environments, from the package registries.
test_install() {
  part "installation" tracer_tests -m install
}

parts=("$@")
case "$*" in
  '') parts=(c ruby python) ;;
  # The others last: the rest runs as on a machine that has none of them.
  --all) parts=(c ruby python install rubies) ;;
esac
for name in "${parts[@]}"; do
  case $name in
    c | ruby | python | install | rubies) "test_$name" ;;
    *) die "no part called $name: c, ruby, python, install, rubies" ;;
  esac
done

if [ ${#failed[@]} -gt 0 ]; then
  printf -v list '%s, ' "${failed[@]}"
  die "failed: ${list%, }"
fi
say "all tests passed, $SECONDS s"
