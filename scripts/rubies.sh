#!/usr/bin/env bash
# Rubies for the tests, kept outside the checkout (RBTRACE_RUBIES_DIR, by default
# ~/.cache/rbtrace-py/rubies): chroots with Debian's Rubies, which need root, and trees
# built from source.
#
#   scripts/rubies.sh build [NAME…]     build the missing ones
#   scripts/rubies.sh list              print name, version, and path of each one
#   scripts/rubies.sh run NAME CMD…     run a command inside one
#   scripts/rubies.sh unpack [ARCHIVE…] unpack trees, as built and stripped; by default
#                                       those in ../shared/rubies
#   scripts/rubies.sh strip DIR         make a stripped copy of a tree, DIR-stripped
#   scripts/rubies.sh build-from DIR [FLAG…]
#                                       build a tree from a folder of Ruby's source,
#                                       with flags for its configure
#   scripts/rubies.sh check DIR         run all tests of one Ruby on a tree, print its
#                                       row of docs/rubies.md, write its fixture
#
# Debian's suites come and go. A missing suite, or one that cannot be installed, is reported
# and skipped. `build` fails only if none can be built.
#
# `run` gives the command a separate mount namespace, so nothing stays mounted. It sees
# this checkout at its usual path, and the host's /tmp, /proc, /sys, and /dev. The chroot
# itself is read-only, so that no test can affect the next.
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

RUBIES_DIR=${RBTRACE_RUBIES_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/rbtrace-py/rubies}
NAMES=(2.7 3.1 3.3 3.4)
PACKAGES=(ruby ruby-dev ruby-minitest rake bundler gcc make libc6-dev)

# Prints the suites of a Ruby; the last one takes precedence.
suites() {
  case $1 in
    2.7) echo bullseye ;;
    3.1) echo bookworm ;;
    3.3) echo trixie ;;
    3.4) echo sid experimental ;;
    *) die "no Ruby called $1 (there are: ${NAMES[*]})" ;;
  esac
}

# sid installs Ruby 3.4 as ruby3.4, beside its default Ruby. use_version then makes 3.4
# the chroot's ruby. A test compiles the BPF programs with trixie's bcc. Its clang is newer
# than bookworm's.
packages() {
  printf '%s\n' "${PACKAGES[@]}"
  [ "$1" != 3.3 ] || printf '%s\n' python3-bpfcc
  [ "$1" != 3.4 ] || printf '%s\n' ruby3.4 ruby3.4-dev
}

use_version() {
  local dir=$1 name=$2 command
  for command in ruby irb erb; do
    [ ! -e "$dir/usr/bin/$command$name" ] || ln -sf "$command$name" "$dir/usr/bin/$command"
  done
}

# Prints the recipe of a chroot, which is rebuilt if the recipe changes.
spec() {
  echo "2 $(suites "$1") / $(packages "$1" | tr '\n' ' ')"
}

is_built() {
  [ -x "$RUBIES_DIR/$1/usr/bin/ruby" ] \
    && [ "$(cat "$RUBIES_DIR/$1.spec" 2>/dev/null)" = "$(spec "$1")" ]
}

# build_one NAME: quiet if it exists; atomic, and safe to run twice at once.
build_one() (
  local name=$1 root=$RUBIES_DIR/$1 tmp=$RUBIES_DIR/$1.new log=$RUBIES_DIR/$1.log
  mkdir -p "$RUBIES_DIR"
  exec 8>"$RUBIES_DIR/$name.lock"
  flock 8
  ! is_built "$name" || return 0

  is_root || die "building the chroot of Ruby $name needs root"
  have mmdebstrap || die "building the chroot of Ruby $name needs mmdebstrap"
  say "building the chroot of Ruby $name ($(suites "$name"))"
  local start=$SECONDS
  rm -rf "$tmp"
  if ! make_chroot "$name" "$tmp" >"$log" 2>&1 8>&-; then
    rm -rf "$tmp"
    warn "Ruby $name left out: its suite is gone or does not install ($log):"
    grep -E '^(E|W|Err):' "$log" | tail -n 3 >&2 || tail -n 3 "$log" >&2
    return 1
  fi
  rm -rf "$root.old"
  [ ! -e "$root" ] || mv "$root" "$root.old"
  mv "$tmp" "$root"
  spec "$name" >"$RUBIES_DIR/$name.spec"
  rm -rf "$root.old"
  say "Ruby $name: $(version "$name") in $((SECONDS - start)) s, $(du -sh "$root" | cut -f1)"
)

make_chroot() {
  local name=$1 dir=$2 suite mirror
  local -a suites sources
  read -r -a suites <<<"$(suites "$name")"
  mirror=$(debian_mirror)
  for suite in "${suites[@]}"; do
    [ -z "$mirror" ] || sources+=("deb $mirror $suite main")
  done
  if [ -z "$mirror" ] && [ ${#suites[@]} -gt 1 ]; then
    # mmdebstrap wrote its default for the first suite; write the same for the others.
    sources+=(--setup-hook="sed -n 's/ ${suites[0]} / ${suites[-1]} /p' \
\"\$1\"/etc/apt/sources.list >\"\$1\"/etc/apt/sources.list.d/more.list")
  fi
  # Release files of old and moving suites may have expired.
  mmdebstrap --mode=root --variant=essential \
    --include="$(packages "$name" | paste -sd,)" \
    --aptopt='Acquire::Check-Valid-Until "false"' \
    --aptopt='APT::Install-Recommends "false"' \
    --dpkgopt=force-unsafe-io \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/ri/*' \
    "${suites[0]}" "$dir" "${sources[@]}" || return 1
  use_version "$dir" "$name"
  chroot "$dir" /usr/bin/ruby -v | grep -F "ruby $name."
}

version() {
  chroot "$RUBIES_DIR/$1" /usr/bin/ruby -e 'print RUBY_VERSION'
}

build() {
  local name built=0
  local -a names=("$@")
  [ ${#names[@]} -gt 0 ] || names=("${NAMES[@]}")
  for name in "${names[@]}"; do suites "$name" >/dev/null; done
  # Two at a time: one waits for the mirror while the other unpacks.
  printf '%s\n' "${names[@]}" | xargs -P 2 -I '{}' "$0" build-one '{}' || true
  for name in "${names[@]}"; do
    ! is_built "$name" || built=$((built + 1))
  done
  [ $built -gt 0 ] || die "none of the Rubies ${names[*]} could be built"
}

list() {
  local name
  for name in "${NAMES[@]}"; do
    ! is_built "$name" || printf '%s\t%s\t%s\n' "$name" "$(version "$name")" "$RUBIES_DIR/$name"
  done
}

# A tree has bin/ruby and runs from any path.

SHARED=${RBTRACE_SHARED:-$REPO/../shared}

unpack() {
  local archive
  local -a archives=("$@")
  [ ${#archives[@]} -gt 0 ] || archives=("$SHARED"/rubies/ruby-*.tar.xz)
  for archive in "${archives[@]}"; do
    [ -e "$archive" ] || die "no archive $archive"
    unpack_one "$archive"
  done
}

# Quiet if it exists; atomic, and safe to run twice at once.
unpack_one() (
  local archive=$1 name tree origin
  name=$(basename "$archive" .tar.xz)
  tree=$RUBIES_DIR/${name#ruby-}
  origin=$(stat -c '%s %Y' "$archive")
  mkdir -p "$RUBIES_DIR"
  exec 8>"$tree.lock"
  flock 8
  [ ! -d "$tree-stripped" ] || [ "$(cat "$tree.origin" 2>/dev/null)" != "$origin" ] || return 0

  say "unpacking $(basename "$archive")"
  rm -rf "$tree" "$tree.new"
  mkdir "$tree.new"
  tar -xf "$archive" -C "$tree.new" --strip-components=1
  mv "$tree.new" "$tree"
  strip_copy "$tree"
  echo "$origin" >"$tree.origin"
)

# Makes a tree of hard links, with stripped copies of files with .symtab or debug information.
strip_copy() {
  local tree=${1%/} file
  rm -rf "$tree-stripped" "$tree-stripped.new"
  cp -al "$tree" "$tree-stripped.new"
  while IFS= read -r -d '' file; do
    strip --strip-all -o "$file.new" "$file"
    mv "$file.new" "$file"
  done < <(find "$tree-stripped.new" -type f \( -path '*/bin/ruby' -o -name '*.so*' \) -print0)
  mv "$tree-stripped.new" "$tree-stripped"
  say "$tree-stripped: $("$tree-stripped/bin/ruby" -v)"
}

# tree_name FOLDER FLAG…: combine both into a file name of at most 255 bytes. If the flags
# are too long, a checksum of all of them replaces their end.
tree_name() {
  local name
  name=$1$(printf '%s' "${*:2}" | sed 's/^./ &/' | tr -cs 'A-Za-z0-9._' '-')
  [ ${#name} -le 200 ] || name=${name:0:180}-$(printf '%s' "$*" | sha256sum | cut -c 1-16)
  printf '%s\n' "$name"
}

# build_from DIR FLAG…: build in a copy, so that DIR stays unchanged.
build_from() (
  local source name tree work log
  source=$(cd "$1" && pwd)
  shift
  [ -f "$source/vm_core.h" ] || die "$source is no folder of Ruby's source"
  name=$(tree_name "$(basename "$source")" "$@")
  tree=$RUBIES_DIR/$name
  [ ! -x "$tree/bin/ruby" ] || { say "$tree is built already" && return; }
  mkdir -p "$RUBIES_DIR"
  work=$(mktemp -d "$RUBIES_DIR/build.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  log=$RUBIES_DIR/$name.log
  say "building $name (log: $log)"
  if ! make_tree "$source" "$work" "$tree.new" "$@" >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    die "$name did not build"
  fi
  # Installed with DESTDIR, because its prefix is its final path.
  rm -rf "$tree"
  mv "$tree.new$tree" "$tree"
  rm -rf "$tree.new"
  say "$tree: $("$tree/bin/ruby" -v)"
)

# Runs in a separate shell, so that nothing after it is traced.
make_tree() (
  local source=$1 work=$2 destination=$3 part
  shift 3
  set -x
  cp -a "$source/." "$work"
  cd "$work"
  # A checkout lacks both files, and the build would download them.
  if [ ! -x configure ]; then
    for part in guess sub; do
      [ -e "tool/config.$part" ] || cp "/usr/share/misc/config.$part" tool/
    done
    if [ -x autogen.sh ]; then ./autogen.sh; else autoconf; fi
  fi
  [ -e .git ] || [ -e revision.h ] || touch revision.h # which 3.0 would ask git for
  [ ! -e gems/bundled_gems ] || compgen -G 'gems/*.gem' >/dev/null || : >gems/bundled_gems
  ./configure --prefix="${destination%.new}" --enable-load-relative \
    --disable-install-doc "$@"
  make -j"$(nproc)"
  make install DESTDIR="$destination"
)

check() {
  [ -x "$1/bin/ruby" ] || die "$1 has no bin/ruby"
  cd "$REPO"
  RBTRACE_RUBY=$(cd "$1" && pwd)/bin/ruby exec .venv/bin/python tests/matrix/check.py "${@:2}"
}

run() {
  local name=$1
  shift
  is_built "$name" || die "no chroot of Ruby $name: scripts/rubies.sh build $name"
  is_root || die "running in a chroot needs root"
  exec unshare --mount -- "$0" enter "$RUBIES_DIR/$name" "$@"
}

# Runs in the new mount namespace: mounts what is needed, and enters the chroot.
enter() {
  local root=$1 dir
  shift
  mkdir -p "$root$REPO"
  mount --bind "$root" "$root"
  mount -o remount,bind,ro "$root"
  for dir in proc sys dev; do
    mount --rbind "/$dir" "$root/$dir"
  done
  mount --rbind /tmp "$root/tmp"
  mount --bind "$REPO" "$root$REPO"
  unset RUBYOPT RUBYLIB GEM_HOME GEM_PATH BUNDLE_GEMFILE
  # Without --login, since the command expects the caller's environment.
  export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp
  # shellcheck disable=SC2016  # expanded inside
  exec chroot "$root" /bin/sh -c 'cd "$1" && shift && exec "$@"' sh "$PWD_INSIDE" "$@"
}

# The command starts in the caller's directory, if that is inside the checkout.
case $PWD/ in
  "$REPO"/*) export PWD_INSIDE=$PWD ;;
  *) export PWD_INSIDE=$REPO ;;
esac

case ${1-} in
  build) build "${@:2}" ;;
  build-one) build_one "$2" ;;
  list) list ;;
  run)
    [ $# -ge 3 ] || die "usage: scripts/rubies.sh run NAME CMD…"
    run "${@:2}"
    ;;
  enter) enter "${@:2}" ;;
  unpack) unpack "${@:2}" ;;
  strip | build-from | check)
    [ $# -ge 2 ] || die "usage: scripts/rubies.sh $1 DIR"
    case $1 in
      strip) strip_copy "$(cd "$2" && pwd)" ;;
      build-from) build_from "${@:2}" ;;
      check) check "${@:2}" ;;
    esac
    ;;
  *) die "usage: scripts/rubies.sh build|list|run|unpack|strip|build-from|check (see its head)" ;;
esac
