#!/bin/sh
# The whole way on the sample export: look into the pickles, convert, statistics, proof, reading, a short training. `make demo` calls this
# with the environment's programs first in PATH.
set -eu
cd "$(dirname "$0")/.."

export=demo/exports/pursuit/2
rm -rf demo
mkdir -p "$export"
cp -r data/pursuit/2/wm "$export/"

run() {
    printf '\n$ %s\n' "$*"
    "$@"
}

run omstore peek "$export/wm/env_transition_graph.pkl"
run omstore convert "$export"
run omstore stats "$export"
run omstore verify "$export" --against
run python tools/demo_reading.py "$export"
run omtrain "$export" --agent-root-state-samples 20000 --team-root-state-samples 20000 --print-every 20000
run omtrain show "$export"
printf '\nThe store is in %s/store; its pickles can be converted again as often as you like.\n' "$export"
