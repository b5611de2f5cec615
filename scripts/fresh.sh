#!/usr/bin/env bash
# Simulates a new machine: creates a minimal Debian with only git and make, clones the
# last commit, and runs the README's commands. It does so once under /root, which other
# users cannot enter, and once under /opt.
#
#   scripts/fresh.sh bookworm                make demo, then make test, in both places
#   scripts/fresh.sh trixie setup            only make setup (twice: the second is quick)
#   PLACES=/opt scripts/fresh.sh bookworm    only there
#   KEEP=1 scripts/fresh.sh trixie           keep the systems, and print their paths
#
# Needs root and mmdebstrap. Without KEEP=1 the systems are removed afterwards.
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
  # A real machine's network provides host names, and certificates to trust.
  cp -L /etc/resolv.conf /etc/hosts "$dir/etc/"
  mkdir -p "$dir/usr/local/share/ca-certificates"
  cp -rL /usr/local/share/ca-certificates/. "$dir/usr/local/share/ca-certificates/"
  git -C "$REPO" bundle create -q "$dir/srv/repo.bundle" HEAD
}

# Runs in a separate mount namespace, so nothing stays mounted. The new system becomes its
# root instead of a chroot, in which the kernel would not allow user namespaces.
enter() {
  local dir=$1 mount
  shift
  mount --bind "$dir" "$dir"
  cd "$dir"
  for mount in proc sys dev; do
    mount --rbind "/$mount" "$dir/$mount"
  done
  mkdir old
  pivot_root . old
  umount --lazy /old
  rmdir /old
  unset "${!RBTRACE_@}" "${!XDG_@}"
  unset RUBYOPT RUBYLIB GEM_HOME GEM_PATH BUNDLE_GEMFILE PYTHONPATH VIRTUAL_ENV
  export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
  exec /bin/bash -c "$(declare -f type_commands); type_commands \"\$@\"" fresh "$@" </dev/null
}

# type_commands PLACE TARGET…: run the commands in the new system.
type_commands() {
  local target status=0
  cd "$1" || return
  shift
  git -c init.defaultBranch=main clone -q -c advice.detachedHead=false /srv/repo.bundle rbtrace-py
  cd rbtrace-py || return
  for target; do
    echo "==> $PWD: make $target"
    time make "$target" || status=1
    case $target in setup*) time make "$target" || status=1 ;; esac
  done
  return $status
}

if [ "${1-}" = enter ]; then
  enter "${@:2}"
fi
[ $# -ge 1 ] || die "usage: scripts/fresh.sh SUITE [TARGET…]"
is_root || die "making a new system needs root"
have mmdebstrap || die "making a new system needs mmdebstrap"

suite=$1
shift
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(demo test)
read -r -a places <<<"${PLACES-/root /opt}"
work=$(mktemp -d)
chmod 755 "$work"
# The namespaces have ended, but make sure never to delete inside a mount.
trap 'rm -rf --one-file-system "$work/base" "$work/log"; rmdir --ignore-fail-on-non-empty "$work"' EXIT

say "making a minimal $suite"
make_base "$work/base" "$suite" >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; exit 1; }
failed=()
for place in "${places[@]}"; do
  system=$work/$(basename "$place")
  cp -a --reflink=auto "$work/base" "$system"
  unshare --mount -- "$0" enter "$system" "$place" "${targets[@]}" || failed+=("$place")
  if [ "${KEEP-}" = 1 ]; then
    say "kept: $system"
  else
    rm -rf --one-file-system "${system:?}"
  fi
done
[ ${#failed[@]} -eq 0 ] || die "$suite: failed on a fresh clone in ${failed[*]}"
say "$suite: ${targets[*]} work on a fresh clone in ${places[*]}"
