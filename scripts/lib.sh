# shellcheck shell=bash disable=SC2034
# Shared by the scripts in this folder. Source it; do not run it.

set -euo pipefail

REPO=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Folder for the stamps of setup.sh.
SETUP_DIR=$REPO/.setup
VENV=$REPO/.venv
# Debian builds bcc for this Python only, and PATH may have another python3 first.
SYSTEM_PYTHON=${RBTRACE_PYTHON:-/usr/bin/python3}

# A minimal system has only this locale.
export LC_ALL=C.UTF-8

say() { printf '==> %s\n' "$*"; }
warn() { printf '!!  %s\n' "$*" >&2; }
die() {
  warn "$*"
  exit 1
}
is_root() { [ "$(id -u)" -eq 0 ]; }
have() { command -v "$1" >/dev/null 2>&1; }

# Prints the packages among "$@" that are not installed, one per line.
missing_packages() {
  local package
  for package; do
    case $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) in
      installed*) ;;
      *) echo "$package" ;;
    esac
  done
}

# Prints the Debian mirror of this machine's package lists; nothing for the default of
# mmdebstrap.
# shellcheck disable=SC2016  # apt-get expands it
debian_mirror() {
  have apt-get || return 0
  apt-get indextargets --format '$(REPO_URI)' \
    'Created-By: Packages' 'Component: main' 'Origin: Debian' 'Label: Debian' \
    2>/dev/null | sed -n 1p
}
