#!/usr/bin/env bash
# Runs a command on another kernel: in a virtual machine with Debian bookworm, a clone of
# the last commit, and the kernel of a Debian release. The machine is emulated, because not
# every host's KVM boots such kernels. Everything takes ten times as long.
#
#   scripts/guest.sh 5.10 [CMD…]     default: the tests in SMOKE
#   scripts/guest.sh 6.1 [CMD…]
#
# Needs root, mmdebstrap, qemu-system-x86, and cpio. The system is cached in
# ~/.cache/rbtrace-py/guest.
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

GUEST_DIR=${XDG_CACHE_HOME:-$HOME/.cache}/rbtrace-py/guest
PACKAGES=(
  ruby ruby-dev python3-venv python3-bpfcc gcc make libc6-dev binutils git
  ca-certificates kmod procps mount file
)
LIMIT=3600
# Leaves out tests in these files that count ticks, which an emulated machine misses, and
# tests that need kernel 6.9.
LEFT_OUT="each_ruby or test_reads or no_cost or newest_frames or first_instruction or come_and_go or comes_and_goes or test_events"
# On 5.10, the verifier takes half a minute per program, or minutes on a busy machine.
SMOKE=(
  env RBTRACE_TEST_TIMEOUT=300
  .venv/bin/python -m pytest -q --color=no -p no:cacheprovider --timeout 600 --tb=short
  -m "not rubies and not install" -k "not ($LEFT_OUT)"
  tests/e2e/probes/test_workload.py
  tests/e2e/stacks/test_kernel_stacks.py
  tests/e2e/stacks/test_kernel_frames.py
  tests/e2e/stacks/test_off_cpu.py
  tests/e2e/stacks/test_stacks_on.py
)

suite() {
  case $1 in
    5.10) echo bullseye ;;
    6.1) echo bookworm ;;
    *) die "no kernel $1 (there are: 5.10, 6.1)" ;;
  esac
}

# mmdebstrap_into DIR SUITE VARIANT PACKAGE…
mmdebstrap_into() {
  local dir=$1 suite=$2 variant=$3 mirror
  local -a sources=()
  shift 3
  mirror=$(debian_mirror)
  [ -z "$mirror" ] || sources=("deb $mirror $suite main")
  mmdebstrap --quiet --mode=root --variant="$variant" --include="$(printf '%s,' "$@")" \
    --aptopt='Acquire::Check-Valid-Until "false"' --aptopt='APT::Install-Recommends "false"' \
    --dpkgopt=force-unsafe-io --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/ri/*' \
    "$suite" "$dir" "${sources[@]}"
}

build() {
  local kernel=$1
  mkdir -p "$GUEST_DIR"
  if [ "$(cat "$GUEST_DIR/packages" 2>/dev/null)" != "${PACKAGES[*]}" ]; then
    say "building the guest's system"
    rm -rf "$GUEST_DIR/system" "$GUEST_DIR/packages"
    mmdebstrap_into "$GUEST_DIR/system" bookworm essential "${PACKAGES[@]}"
    echo "${PACKAGES[*]}" >"$GUEST_DIR/packages"
  fi
  if [ ! -e "$GUEST_DIR/vmlinuz-$kernel" ]; then
    say "fetching Linux $kernel"
    rm -rf "$GUEST_DIR/kernel.new"
    mmdebstrap_into "$GUEST_DIR/kernel.new" "$(suite "$kernel")" extract linux-image-cloud-amd64
    mv "$GUEST_DIR"/kernel.new/boot/vmlinuz-* "$GUEST_DIR/vmlinuz-$kernel"
    rm -rf "$GUEST_DIR/kernel.new"
  fi
}

# make_image FILE CMD…: run in a separate mount namespace.
make_image() {
  local image=$1 root=$work/root
  shift
  mkdir -p "$work"/{upper,root}
  mount -t tmpfs tmpfs "$work/upper" -o mode=755
  mkdir "$work"/upper/{new,scratch}
  mount -t overlay overlay "$root" \
    -o "lowerdir=$GUEST_DIR/system,upperdir=$work/upper/new,workdir=$work/upper/scratch"
  cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
  cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
  git clone -q "$REPO" "$root/repo"
  chroot "$root" /usr/bin/env PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root bash -ec '
    cd /repo
    python3 -m venv --system-site-packages .venv
    .venv/bin/pip install -qq -e . "pytest>=8" "pytest-timeout>=2.3" "hypothesis>=6.100"
    scripts/build-extension.sh' >&2
  printf '#!/bin/bash\n%s\ncd /repo\n%s\necho "exit $?"\n%s\n' "$(declare -f boot)" \
    "boot; ${*@Q}" "echo o >/proc/sysrq-trigger; sleep 60" >"$root/init"
  chmod +x "$root/init"
  (cd "$root" && find . -xdev | cpio --quiet -o -H newc) >"$image"
}

# Runs in the guest, as its first process.
boot() {
  local kind
  export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
  for kind in proc:/proc sysfs:/sys devtmpfs:/dev devpts:/dev/pts tmpfs:/dev/shm \
    tracefs:/sys/kernel/tracing tmpfs:/tmp tmpfs:/run; do
    mkdir -p "${kind#*:}"
    mount -t "${kind%:*}" none "${kind#*:}"
  done
  exec </dev/null >/dev/ttyS1 2>&1
}

main() {
  local kernel=$1 status
  shift
  [ $# -gt 0 ] || set -- "${SMOKE[@]}"
  suite "$kernel" >/dev/null
  is_root || die "the guest's system is built as root"
  build "$kernel"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  export GUEST_DIR work
  say "installing this checkout in the guest"
  unshare --mount bash -c ". '$REPO/scripts/lib.sh'; $(declare -f make_image boot)
    make_image \"\$@\"" guest "$work/image" "$@"
  say "Linux $kernel: $*"
  timeout --kill-after=20 "$LIMIT" qemu-system-x86_64 -accel tcg -cpu max -smp 1 -m 4G -no-reboot \
    -display none -monitor none -serial "file:$work/console" -serial stdio \
    -kernel "$GUEST_DIR/vmlinuz-$kernel" -initrd "$work/image" \
    -append "console=ttyS0 panic=-1 mitigations=off nokaslr" \
    </dev/null | tee "$work/out" || warn "the virtual machine was ended, or failed"
  status=$(sed -n 's/^exit \([0-9]*\).*/\1/p' "$work/out" | tail -n 1)
  [ -n "$status" ] || die "the guest did not end by itself: $(tail -n 5 "$work/console")"
  return "$status"
}

[ $# -gt 0 ] || die "usage: scripts/guest.sh KERNEL [CMD…]"
main "$@"
