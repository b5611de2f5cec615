#!/usr/bin/env bash
# Sets up a fresh checkout: system packages, virtual environment, the C library, the
# gem's extension, tracefs. Repeated runs only do what has changed.
#
#   scripts/setup.sh          everything that `make demo` needs
#   scripts/setup.sh --test   also everything that `make test` and `make lint` need
#   scripts/setup.sh --bench  also for `make bench`: a Rails application, and a load generator
#   scripts/setup.sh --soak   also for `make soak`: virtual machines
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Needed to run the tracer and the gem.
RUNTIME_PACKAGES=(
  ca-certificates git make gcc libc6-dev binutils
  ruby ruby-dev python3 python3-venv python3-bpfcc
)
# Needed by the tests; tests are skipped if their package is unavailable.
TEST_PACKAGES=(
  pkg-config ruby-minitest ruby-rspec ruby-stackprof ruby-rbtrace ruby-prof puma unicorn rake rake-compiler bundler
  rubocop shellcheck
  libc6-dbg valgrind gdb bpftrace bpfcc-tools elfutils dwz
  strace procps file util-linux mmdebstrap debootstrap zsh fish
  chromium fonts-dejavu-core
  protobuf-compiler golang-github-google-pprof-dev libdevel-nytprof-perl
  ruby-rails ruby-sqlite3 ruby-sidekiq ruby-redis redis-server
)
BENCH_PACKAGES=(ruby-rails ruby-sqlite3 puma wrk)
SOAK_PACKAGES=(qemu-system-x86 cpio)
# A viewer that no distribution packages. The checksum makes sure that npm delivers the
# reviewed version; npm's own checks do not.
SPEEDSCOPE=1.25.0
SPEEDSCOPE_SHA256=2831f1e0d26df914b477e522d78b8485511495a6af81a0b88158f8b48f9e0d03
SPEEDSCOPE_DIR=${XDG_CACHE_HOME:-$HOME/.cache}/rbtrace-py/speedscope

with_tests=no
more_packages=()
case ${1-} in
  '') ;;
  --test) with_tests=yes ;;
  --bench) with_tests=yes more_packages=("${BENCH_PACKAGES[@]}") ;;
  --soak) with_tests=yes more_packages=("${SOAK_PACKAGES[@]}") ;;
  *) die "usage: scripts/setup.sh [--test | --bench | --soak]" ;;
esac

perf_package() {
  if grep -qx 'ID=ubuntu' /etc/os-release; then
    echo linux-tools-generic
  else
    echo linux-perf
  fi
}

apt_get() {
  DEBIAN_FRONTEND=noninteractive apt-get -q -y \
    -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@" </dev/null
}

# install_packages REQUIRED|OPTIONAL PACKAGE…
install_packages() {
  local kind=$1 package
  local -a missing available=() unavailable=()
  shift
  mapfile -t missing < <(missing_packages "$@")
  [ ${#missing[@]} -gt 0 ] || return 0

  if ! is_root; then
    warn "missing packages: ${missing[*]}"
    warn "install them with: sudo apt-get install ${missing[*]}"
    return 0
  fi

  say "installing packages: ${missing[*]}"
  update_package_lists
  for package in "${missing[@]}"; do
    if apt-cache show "$package" >/dev/null 2>&1; then
      available+=("$package")
    else
      unavailable+=("$package")
    fi
  done
  if [ ${#unavailable[@]} -gt 0 ]; then
    warn "this system has no package ${unavailable[*]}"
    [ "$kind" = OPTIONAL ] || exit 1
  fi
  [ ${#available[@]} -gt 0 ] || return 0
  if ! quietly apt_get install --no-install-recommends "${available[@]}"; then
    [ "$kind" = OPTIONAL ] || die "apt-get could not install ${available[*]}"
    warn "apt-get could not install ${available[*]}; their tests will be skipped"
  fi
}

lists_are_new=no
update_package_lists() {
  [ $lists_are_new = no ] || return 0
  # Continue even if a third-party source does not respond.
  quietly apt_get update || warn "apt-get update reported errors; going on"
  lists_are_new=yes
}

# Runs a command, and shows its output only if it fails.
quietly() {
  local log
  log=$(mktemp)
  if "$@" >"$log" 2>&1; then
    rm -f "$log"
    return 0
  fi
  tail -n 40 "$log" >&2
  rm -f "$log"
  return 1
}

setup_packages() {
  if ! have dpkg-query; then
    warn "no dpkg here: make sure that what ${RUNTIME_PACKAGES[*]} give on Debian is installed"
    return 0
  fi
  install_packages REQUIRED "${RUNTIME_PACKAGES[@]}"
  if [ $with_tests = yes ]; then
    install_packages OPTIONAL "${TEST_PACKAGES[@]}" "$(perf_package)"
  fi
  if [ ${#more_packages[@]} -gt 0 ]; then
    install_packages OPTIONAL "${more_packages[@]}"
  fi
}

setup_venv() {
  [ -x "$SYSTEM_PYTHON" ] || die "no $SYSTEM_PYTHON: install python3 and python3-venv"
  local version stamp
  version=$("$SYSTEM_PYTHON" -c 'import sys; print(sys.version)')
  # An editable install contains the checkout's path, so a moved checkout reinstalls.
  stamp=$(printf '%s\n' "$version" "$REPO" | cat - "$REPO/pyproject.toml" | sha256sum)
  if [ -x "$VENV/bin/python" ] && [ "$stamp" = "$(cat "$SETUP_DIR/venv" 2>/dev/null)" ]; then
    return 0
  fi
  say "making the virtual environment .venv"
  # Its scripts contain their absolute path, so a moved environment is unusable.
  if [ "$("$VENV/bin/python" -c 'import sys; print(sys.version)' 2>/dev/null)" != "$version" ] \
    || ! grep -qF "$VENV" "$VENV/bin/activate"; then
    rm -rf "$VENV"
    "$SYSTEM_PYTHON" -m venv --system-site-packages "$VENV" \
      || die "could not make .venv: install python3-venv"
  fi
  say "installing the Python package and what it needs into it (a minute or less)"
  if ! quietly pip_install; then
    # Without a wheel for this machine, the dependency must be compiled.
    if ! is_root || ! have apt-get; then
      die "pip could not install; if it lacks Python.h, install python3-dev"
    fi
    install_packages OPTIONAL python3-dev
    quietly pip_install || die "pip could not install the package and its dependencies"
  fi
  printf '%s\n' "$stamp" >"$SETUP_DIR/venv"
}

pip_install() {
  "$VENV/bin/python" -m pip install --disable-pip-version-check -e "${REPO}[dev,docs]"
}

setup_speedscope() {
  local new=$SPEEDSCOPE_DIR.new
  [ ! -d "$SPEEDSCOPE_DIR/package" ] || return 0
  if ! have npm; then
    warn "no npm: the test that opens speedscope will be skipped"
    return 0
  fi
  rm -rf "$new"
  mkdir -p "$new"
  if (cd "$new" && quietly npm pack --silent "speedscope@$SPEEDSCOPE") \
    && echo "$SPEEDSCOPE_SHA256  $new/speedscope-$SPEEDSCOPE.tgz" | sha256sum --check --quiet \
    && tar -xzf "$new/speedscope-$SPEEDSCOPE.tgz" -C "$new"; then
    rm -rf "$SPEEDSCOPE_DIR"
    mv "$new" "$SPEEDSCOPE_DIR"
  else
    rm -rf "$new"
    warn "could not get speedscope: the test that opens it will be skipped"
  fi
}

setup_native() {
  if ! have gcc || ! have make; then
    warn "no C compiler: the C library and the gem's extension are not built"
    return 0
  fi
  if [ -f "$REPO/ext/libstapsdt/Makefile" ]; then
    make -q -C "$REPO/ext/libstapsdt" >/dev/null 2>&1 || say "building the C library and the gem's extension"
    quietly make -C "$REPO/ext/libstapsdt" || die "the C library did not build"
  fi
  if ! have ruby; then
    warn "no ruby: the gem's extension is not built"
  else
    quietly "$REPO/scripts/build-extension.sh" || die "the gem's extension did not build"
  fi
}

setup_tracefs() {
  local dir=/sys/kernel/tracing
  # Only root can list it.
  ! grep -q ' tracefs ' /proc/self/mounts || return 0
  [ ! -e $dir/uprobe_events ] || return 0
  if ! is_root; then
    warn "tracefs is not mounted: sudo mount -t tracefs tracefs $dir"
  elif ! mount -t tracefs tracefs $dir 2>/dev/null; then
    warn "could not mount tracefs at $dir: tracing is limited (rbtrace-py doctor says how)"
  fi
}

# After `sudo make …` in a user's checkout, give the new files to the user.
give_to_owner() {
  local owner
  owner=$(stat -c %u:%g "$REPO")
  if is_root && [ "$owner" != 0:0 ]; then
    find "$REPO" -xdev -path "$REPO/.git" -prune -o -uid 0 -exec chown -h "$owner" {} +
  fi
}

if [ ! -w "$REPO" ]; then
  [ -x "$VENV/bin/rbtrace-py" ] || die "$REPO is not writable and not set up: run make setup as its owner"
  exit 0
fi
mkdir -p "$SETUP_DIR"
# Concurrent runs (make -j, two shells) take turns.
exec 9>"$SETUP_DIR/lock"
flock 9

setup_packages
setup_venv
setup_native
[ $with_tests = no ] || setup_speedscope
setup_tracefs
give_to_owner
say "ready: .venv/bin/rbtrace-py"
