#!/usr/bin/env bash
# Builds the documentation site in site/. Fails on broken links.
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$REPO"

# Silence the theme's warning about MkDocs versions other than the installed one.
export NO_MKDOCS_2_WARNING=1
.venv/bin/mkdocs build --strict
say "built: site/index.html"
