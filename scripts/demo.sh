#!/usr/bin/env bash
# Starts the example shop and profiles it with rbtrace-py. Prints each command as a user
# would type it. The shop stops with this script, however the script ends.
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$REPO"

PATH=$VENV/bin:$PATH
log=$(mktemp)
shop=
made=

# If the demo is interrupted, its files are removed: the user does not know of them.
stop() {
  local status=$?
  if [ -n "$shop" ]; then
    kill "$shop" 2>/dev/null || true
    wait "$shop" 2>/dev/null || true
  fi
  rm -f "$log"
  if [ -n "$made" ] && [ $status -ne 0 ]; then
    rm -rf "$made"
  fi
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

show() {
  printf '\n$ %s\n' "$(printable "$@")"
  "$@"
}

# The same for folded stacks of at least 10 ms, without their paths.
show_stacks() {
  local line shown these='/ [0-9]{8,}$/!d; s/ [^ ;]*\.rb//g'
  printf "\n$ %s \\\\\n    | sed -E '%s'\n" "$(printable "$@")" "$these"
  "$@" | sed -E "$these" | {
    shown=
    while IFS= read -r line; do
      shorten "$line"
      shown=1
    done
    [ -n "$shown" ] || die "the command printed no stacks of 10 ms and more"
  }
}

# Prints the first frame of a folded stack and as many of the last frames as fit.
shorten() {
  local first=${1%%;*} rest=${1#*;}
  if [ ${#1} -le 79 ]; then
    printf '%s\n' "$1"
    return
  fi
  while [ $((${#first} + 3 + ${#rest})) -gt 79 ] && [[ $rest == *';'* ]]; do
    rest=${rest#*;}
  done
  printf '%s;…;%s\n' "$first" "$rest"
}

# Prints a command as a user would type it, with quotes only where the shell needs them.
printable() {
  local word line=
  for word; do
    case $word in
      *[!A-Za-z0-9_./:,=-]*) word="'$word'" ;;
    esac
    line+="$word "
  done
  printf '%s' "${line% }"
}

start_shop() {
  have ruby || die "the example needs ruby: run make setup as root"
  printf '$ ruby -Iruby/lib examples/shop/shop.rb &\n'
  ruby -Iruby/lib examples/shop/shop.rb >"$log" 2>&1 &
  shop=$!
  local tries=0
  until grep -q '^ready' "$log"; do
    kill -0 "$shop" 2>/dev/null || { cat "$log" >&2; die "the shop did not start"; }
    tries=$((tries + 1))
    [ $tries -lt 300 ] || die "the shop was not ready after 30 s"
    sleep 0.1
  done
  cat "$log"
}

start_shop
show rbtrace-py probes "$shop"

if ! is_root; then
  cat <<MESSAGE

Listing probes needs no rights beyond the target's. Tracing them loads BPF programs,
which needs root:

  sudo make demo

MESSAGE
  exit 0
fi

show rbtrace-py count "$shop" 'shop:*' --duration 2
show rbtrace-py trace "$shop" 'shop:*' --count 10
show rbtrace-py latency "$shop" checkout --duration 3
show rbtrace-py latency "$shop" checkout --by sku --duration 3

# The remaining commands read the shop's memory, without probes or BPF.
made=$(mktemp -d -t rbtrace-demo.XXXXXX)
chmod 755 "$made"
printf '\n$ cd %s\n' "$made"
cd "$made"
show rbtrace-py record "$shop" --duration 3 --silent -o shop.rbrec
show rbtrace-py report shop.rbrec --format summary
show rbtrace-py report shop.rbrec --format flamegraph -o shop.svg
show_stacks rbtrace-py report shop.rbrec --format folded

cat <<MESSAGE

These are the shop's stacks of 10 ms and more, folded (… stands for frames of
long lines). All of them as a flame graph, for a browser:

  $made/shop.svg

Now your own program, by a word of its command line:

  sudo $VENV/bin/rbtrace-py top --ps puma

To remove the flame graph and the recording that it was made of:

  rm -r $made

MESSAGE
