#!/usr/bin/env bash
# Installs the library into a folder, compiles a program against it with the flags of
# pkg-config, runs it, and uninstalls. The folder must be empty afterwards.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
fail() {
  echo "install: $*" >&2
  exit 1
}
# Paths like a distribution's, and a path that the shell could split.
make_() {
  make -s "$1" DESTDIR="$root/a stage" PREFIX=/usr LIBDIR=/usr/lib/multi
}

make_ install
stage="$root/a stage"
version=$(sed -n 's/^#define SDT_VERSION "\(.*\)"$/\1/p' libstapsdt.h)
expected="/usr/include/libstapsdt.h
/usr/lib/multi/libstapsdt.a
/usr/lib/multi/libstapsdt.so
/usr/lib/multi/libstapsdt.so.0
/usr/lib/multi/libstapsdt.so.$version
/usr/lib/multi/pkgconfig/libstapsdt.pc"
found=$(cd "$stage" && find . ! -type d | cut -c2- | LC_ALL=C sort)
[ "$found" = "$expected" ] || fail "installed: $found"

cat >"$root/program.c" <<'C'
#include <libstapsdt.h>
#include <stdio.h>
#include <string.h>

#if SDT_VERSION_NUMBER < SDT_VERSION_OF(0, 1, 0)
#error "an old header"
#endif

int main(void) {
  sdt_pool *pool = sdt_pool_create();
  sdt_probe *probe;
  if (sdt_define(pool, "shop", "sold", SDT_EVENT, NULL, 0, NULL, &probe) != 0 ||
      sdt_watched(probe))
    return 1;
  sdt_pool_destroy(pool);
  SDTProvider_t *provider = providerInit("shop");
  if (!providerAddProbe(provider, "sold", 1, uint64) || providerLoad(provider))
    return 2;
  providerDestroy(provider);
  puts(sdt_version());
  return strcmp(sdt_version(), SDT_VERSION) != 0;
}
C

# Use a prefix without spaces, which pkg-config does not support.
ln -s "$stage" "$root/stage"
export PKG_CONFIG_PATH="$root/stage/usr/lib/multi/pkgconfig"
export PKG_CONFIG_SYSROOT_DIR="$root/stage"
version=$(pkg-config --modversion libstapsdt)
flags=$(pkg-config --cflags --libs libstapsdt)
static_flags=$(pkg-config --cflags --static --libs libstapsdt)
# shellcheck disable=SC2086  # flags are words
cc -Wall -Wextra -Werror -o "$root/program" "$root/program.c" $flags
said=$(LD_LIBRARY_PATH="$root/stage/usr/lib/multi" "$root/program") || fail "the program: $?"
[ "$said" = "$version" ] || fail "version $said, and pkg-config's $version"
readelf -d "$root/program" | grep -q 'NEEDED.*\[libstapsdt.so.0\]' || fail "linked by another name"
# shellcheck disable=SC2086
cc -Wall -Wextra -Werror -o "$root/static" "$root/program.c" ${static_flags/-lstapsdt/-l:libstapsdt.a}
"$root/static" >/dev/null || fail "the static program: $?"

make_ uninstall
left=$(cd "$stage" && find . ! -type d)
[ -z "$left" ] || fail "left behind: $left"
echo "install: ok ($version)"
