#!/usr/bin/env bash
# Compiles the gem's extension for the Ruby on PATH, into the folder of its ABI
# (where `ruby -Iruby/lib -rtracepoint` finds it), and the agent's hook.
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

build=$REPO/ext/libstapsdt/ruby/build.rb
if [ ! -f "$build" ]; then
  warn "no $build"
  exit 0
fi
ruby "$build"
exec ruby "$REPO/ext/agent/build.rb"
