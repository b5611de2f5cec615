#!/usr/bin/env bash
# Runs all tests: of the C library, of the gem, and of the tracer, including end-to-end
# tests. A failure does not keep the others from running.
#
#   scripts/test.sh               with this machine's Ruby, and a smoke test of the others
#   scripts/test.sh --all         also all tests with the others (needs root), slow tests,
#                                 and the C library with sanitizers and under valgrind
#   scripts/test.sh c ruby …      only these parts: c, sanitizers, ruby, python, slow, install,
#                                 rubies
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$REPO"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# part NAME CMD…
part() {
  local name=$1 start=$SECONDS
  shift
  say "$name"
  if "$@" </dev/null; then
    say "$name: ok, $((SECONDS - start)) s"
  else
    echo "$name" >>"$work/failed"
    warn "$name: FAILED, $((SECONDS - start)) s"
  fi
}

# beside NAME: run a function in the background; `await NAME` prints its output.
declare -A pids
beside() {
  "$1" >"$work/$1" 2>&1 &
  pids[$1]=$!
}

await() {
  wait "${pids[$1]}" || echo "$1" >>"$work/failed"
  cat "$work/$1"
  unset "pids[$1]"
}

# If the tests are terminated for taking too long, print the output of running parts.
stopped() {
  local name
  for name in "${!pids[@]}"; do
    warn "stopped; $name had written:"
    cat "$work/$name"
  done
  exit 143
}
trap stopped TERM

# pytest has separate limits; everything else takes a minute or two.
LIMIT=600
[ "${RBTRACE_SOAK-}" != 1 ] || LIMIT=7200
BOUNDED=(timeout --kill-after=20 "$LIMIT")

test_c() {
  part "C library" "${BOUNDED[@]}" make -s -C ext/libstapsdt WERROR=1 test
  if have pkg-config; then
    part "C library, installed" "${BOUNDED[@]}" make -s -C ext/libstapsdt test-install
  else
    warn "no pkg-config: the C library's installation is not tested"
  fi
}

test_c_with_sanitizers() {
  part "C library with ASan and UBSan" "${BOUNDED[@]}" make -s -C ext/libstapsdt test-asan
  if have valgrind; then
    part "C library under valgrind" "${BOUNDED[@]}" make -s -C ext/libstapsdt test-valgrind
  else
    warn "no valgrind: that run of the C tests is left out"
  fi
}

# Tests that hang print where, and fail.
RUN_GEM_TESTS="timeout --signal=USR1 --kill-after=20 $LIMIT ruby -w ruby/test/run.rb"

# Tests that install the gem run only if the part install is requested as well.
test_ruby() {
  local options="--exclude='/PackagingTest#test_(installed|bundler_git)/'"
  ! has install || options=""
  part "gem" sh -c "$RUN_GEM_TESTS $options"
}

in_ruby() {
  scripts/rubies.sh run "$1" sh -c "scripts/build-extension.sh && $RUN_GEM_TESTS"
}

native() {
  ! has c || test_c
  ! has sanitizers || test_c_with_sanitizers
  ! has ruby || test_ruby
}

# The chroots contain the Rubies that this machine lacks. RUBIES="3.1 3.4" limits which
# ones are built.
build_rubies() {
  local -a names
  read -r -a names <<<"${RUBIES-}"
  part "chroots of the other Rubies" scripts/rubies.sh build "${names[@]}"
  [ ! -d "${RBTRACE_SHARED:-../shared}/rubies" ] \
    || part "trees built from source" scripts/rubies.sh unpack
}

test_gem_with_others() {
  local name version
  while IFS=$'\t' read -r name version _; do
    part "gem with Ruby $version" in_ruby "$name"
  done < <(scripts/rubies.sh list)
}

# A selection and other options follow.
TRACER_TESTS=(.venv/bin/python -m pytest -m)

parts=("$@")
case "$*" in
  '') parts=(c ruby python) ;;
  --all) parts=(c sanitizers ruby python slow install rubies) ;;
esac
for name in "${parts[@]}"; do
  case $name in
    c | sanitizers | ruby | python | slow | install | rubies) ;;
    *) die "no part called $name: c, sanitizers, ruby, python, slow, install, rubies" ;;
  esac
done

has() { [[ " ${parts[*]} " = *" $1 "* ]]; }

if has rubies && ! is_root; then
  warn "the tests with other Rubies need root: they are left out"
  parts=("${parts[@]/rubies/}")
fi

# marks PART…: print the pytest selection for the parts that run.
declare -A MARKS=(
  [python]="(not (rubies or install or slow))" [slow]="(slow and not (rubies or install))"
  [install]=install [rubies]=rubies
)
marks() {
  local name found=""
  for name; do
    ! has "$name" || found+="${found:+ or }${MARKS[$name]}"
  done
  echo "${found:+($found)}"
}

# With this variable set, each worker and each command would recompile all imports.
unset PYTHONDONTWRITEBYTECODE
# Skipped tests are noted in this file, and listed once at the end.
export RBTRACE_LEFT_OUT=$work/left-out
# Workers take the next test, so that a file's fixtures are created only once or twice. One
# more worker than processors: tests also wait for processes and for time.
workers=$(($(nproc) + 1))
AT_ONCE=(-n "$((workers < 4 ? workers : 4))" --dist worksteal)

beside native
found=$(marks python slow)
[ -z "$found" ] || part "tracer and end to end" "${TRACER_TESTS[@]}" "$found and not alone" "${AT_ONCE[@]}"
await native

# Not in parallel with the tests: it uses both processors for minutes.
if has rubies; then
  build_rubies
  beside test_gem_with_others
fi
found=$(marks install rubies)
[ -z "$found" ] || part "tracer: ${found//[()]/}" "${TRACER_TESTS[@]}" "$found and not alone" "${AT_ONCE[@]}"
! has rubies || await test_gem_with_others

found=$(marks python slow install rubies)
[ -z "$found" ] || part "tracer: tests that run alone" "${TRACER_TESTS[@]}" "$found and alone"

[ ! -s "$RBTRACE_LEFT_OUT" ] || .venv/bin/python tests/left_out.py "$RBTRACE_LEFT_OUT"
if [ -s "$work/failed" ]; then
  die "failed: $(paste -sd, "$work/failed" | sed 's/,/, /g')"
fi
say "all tests passed, $SECONDS s"
