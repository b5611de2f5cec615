#!/usr/bin/env bash
# Compiles the agent's hook, and the gem's extension for the Ruby on PATH into the
# folder of its ABI, where `ruby -Iruby/lib -rtracepoint` finds it.
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

build=$REPO/ext/libstapsdt/ruby/build.rb
if [ ! -f "$build" ]; then
  warn "no $build"
  exit 0
fi
ruby "$build"
exec ruby "$REPO/ext/agent/build.rb"
