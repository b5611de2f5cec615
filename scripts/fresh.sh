#!/usr/bin/env bash
# Tries a new user's first steps: in a minimal system that has git and make and
# nothing else, clones the last commit and runs each target in a copy of its own.
#
#   scripts/fresh.sh bookworm                make demo, and make test
#   scripts/fresh.sh trixie setup            only make setup (twice: the second is quick)
#
# Needs root and mmdebstrap. The chroots are removed afterwards.
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

make_base() {
  local dir=$1 suite=$2 mirror
  local -a sources=()
  mirror=$(debian_mirror)
  [ -z "$mirror" ] || sources=("deb $mirror $suite main")
  mmdebstrap --mode=root --variant=minbase --include=git,make \
    --aptopt='Acquire::Check-Valid-Until "false"' --dpkgopt=force-unsafe-io \
    "$suite" "$dir" "${sources[@]}"
  # What any machine is given by its network: names, and whom it trusts.
  cp -L /etc/resolv.conf /etc/hosts "$dir/etc/"
  mkdir -p "$dir/usr/local/share/ca-certificates"
  cp -rL /usr/local/share/ca-certificates/. "$dir/usr/local/share/ca-certificates/"
  git -C "$REPO" bundle create -q "$dir/srv/repo.bundle" HEAD
}

# In a mount namespace of its own: nothing stays mounted.
enter() {
  local dir=$1 target=$2 mount
  # A root that is a mount, as on a real machine: tests make namespaces in it.
  mount --bind "$dir" "$dir"
  cd "$dir"
  for mount in proc sys dev; do
    mount --rbind "/$mount" "$dir/$mount"
  done
  unset RUBYOPT RUBYLIB GEM_HOME GEM_PATH BUNDLE_GEMFILE PYTHONPATH VIRTUAL_ENV
  export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
  # shellcheck disable=SC2016  # expanded inside
  exec chroot "$dir" /bin/bash -c '
    set -e
    # Where every user may read it: some tests run as another one.
    cd /srv
    git -c init.defaultBranch=main clone -q -c advice.detachedHead=false repo.bundle clone
    cd clone
    time make "$1"
    case "$1" in setup*) time make "$1" ;; esac' fresh "$target" </dev/null
}

if [ "${1-}" = enter ]; then
  enter "${@:2}"
fi
[ $# -ge 1 ] || die "usage: scripts/fresh.sh SUITE [TARGET…]"
is_root || die "making a chroot needs root"
have mmdebstrap || die "making a chroot needs mmdebstrap"

suite=$1
shift
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(demo test)
work=$(mktemp -d)
chmod 755 "$work"
# Never into a mount: the namespaces are gone by now, but be sure of it.
trap 'rm -rf --one-file-system "$work"' EXIT

say "making a minimal $suite"
make_base "$work/base" "$suite" >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; exit 1; }
failed=()
for target in "${targets[@]}"; do
  say "$suite: make $target on a fresh clone"
  cp -a --reflink=auto "$work/base" "$work/$target"
  unshare --mount -- "$0" enter "$work/$target" "$target" || failed+=("$target")
  rm -rf --one-file-system "${work:?}/$target"
done
[ ${#failed[@]} -eq 0 ] || die "$suite: failed on a fresh clone: ${failed[*]}"
say "$suite: ${targets[*]} work on a fresh clone"
