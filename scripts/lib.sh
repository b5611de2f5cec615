# shellcheck shell=bash disable=SC2034
# Shared by the scripts of this folder; sourced, not run.

set -euo pipefail

REPO=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Folder in which setup.sh keeps its stamps.
SETUP_DIR=$REPO/.setup
VENV=$REPO/.venv
# Debian builds bcc for this Python only; another python3 may come first on PATH.
SYSTEM_PYTHON=${RBTRACE_PYTHON:-/usr/bin/python3}

# A minimal system has no locale but this one.
export LC_ALL=C.UTF-8

say() { printf '==> %s\n' "$*"; }
warn() { printf '!!  %s\n' "$*" >&2; }
die() {
  warn "$*"
  exit 1
}
is_root() { [ "$(id -u)" -eq 0 ]; }
have() { command -v "$1" >/dev/null 2>&1; }

# The packages among "$@" that are not installed, one a line.
missing_packages() {
  local package
  for package; do
    case $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) in
      installed*) ;;
      *) echo "$package" ;;
    esac
  done
}

# The mirror this machine uses for Debian, if its package lists say so; empty:
# mmdebstrap's own default.
# shellcheck disable=SC2016  # apt-get expands it
debian_mirror() {
  have apt-get || return 0
  apt-get indextargets --format '$(REPO_URI)' \
    'Created-By: Packages' 'Component: main' 'Origin: Debian' 'Label: Debian' \
    2>/dev/null | sed -n 1p
}
