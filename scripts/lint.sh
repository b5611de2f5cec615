#!/usr/bin/env bash
# Runs the linters and formatters for Python, Ruby, C, shell, and English.
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$REPO"

failed=()

check() {
  local name=$1
  shift
  if "$@" </dev/null; then
    say "$name: ok"
  else
    failed+=("$name")
    warn "$name: FAILED"
  fi
}

ruby_files() {
  git ls-files --cached --others --exclude-standard -- '*.rb' '*.gemspec' gem/Rakefile
}

lint_ruby() {
  # rubocop would use the configuration nearest to each file; use ruby/.rubocop.yml.
  if have rubocop && [ -f ruby/.rubocop.yml ]; then
    # shellcheck disable=SC2046  # one word per file, without spaces
    rubocop --config ruby/.rubocop.yml --no-server --cache false $(ruby_files)
  else
    warn "no rubocop: only ruby's own warnings"
    ruby_warnings
  fi
}

# Ruby prints a file's warnings to stderr, and still reports its syntax as OK.
ruby_warnings() {
  local file output status=0
  while read -r file; do
    output=$(ruby -wc "$file" 2>&1) || status=1
    if [ "$output" != "Syntax OK" ]; then
      printf '%s: %s\n' "$file" "$output"
      status=1
    fi
  done < <(ruby_files)
  return $status
}

# Compiles the library and its tests as plain C, and the binding with Ruby's headers.
lint_c() {
  local -a flags=(-std=gnu11 -Wall -Wextra -Werror -fsyntax-only
    -Iext/libstapsdt -Iext/libstapsdt/src) headers
  local files
  mapfile -t files < <(git ls-files --cached --others --exclude-standard -- 'ext/libstapsdt/src/*.c' 'ext/libstapsdt/tests/*.c')
  [ ${#files[@]} -eq 0 ] || gcc "${flags[@]}" "${files[@]}" || return 1
  mapfile -t files < <(sed 's:^:ext/agent/:' ext/agent/sources.txt)
  gcc "${flags[@]}" -Wno-strict-prototypes "${files[@]}" || return 1
  mapfile -t files < <(git ls-files --cached --others --exclude-standard -- 'ext/libstapsdt/ruby/*.c')
  [ ${#files[@]} -gt 0 ] || return 0
  mapfile -t headers < <(ruby -rrbconfig -e '
    puts RbConfig::CONFIG.values_at("rubyhdrdir", "rubyarchhdrdir").map { |d| "-isystem#{d}" }')
  gcc "${flags[@]}" "${headers[@]}" "${files[@]}"
}

lint_shell() {
  if have shellcheck; then
    shellcheck -x scripts/*.sh ext/libstapsdt/tests/*.sh .ci/run examples/rails/start
  else
    warn "no shellcheck: only bash's own check"
    local file
    for file in scripts/*.sh .ci/run; do bash -n "$file"; done
  fi
}

check "ruff" .venv/bin/ruff check --quiet tracer tests scripts setup.py
check "ruff format" .venv/bin/ruff format --quiet --check tracer tests scripts setup.py
check "mypy --strict" .venv/bin/mypy --no-error-summary
check "Ruby" lint_ruby
check "C" lint_c
check "shell" lint_shell
check "English" scripts/check_english.py

if [ ${#failed[@]} -gt 0 ]; then
  printf -v list '%s, ' "${failed[@]}"
  die "lint failed: ${list%, }"
fi
say "lint: everything passed"
