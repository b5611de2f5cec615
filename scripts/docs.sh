#!/usr/bin/env bash
# Builds the site of the docs in site/. A link that leads nowhere fails it.
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$REPO"

# The theme's authors warn of a MkDocs that is not the one installed here.
export NO_MKDOCS_2_WARNING=1
.venv/bin/mkdocs build --strict
say "built: site/index.html"
