#!/bin/sh
# Every measurement that the README quotes, one after the other. Makes the exports first where they are absent: 3 GB of disk and, for the
# full one and for the pickle.load baseline, 16 GiB of memory. About an hour.
#
#   OMSTORE_BENCH_DATA  where the exports lie (default: bench-data)
#   OMSTORE_BENCH_RUNS  how often each timed command is run (default: 3)
set -eu
cd "$(dirname "$0")/../.."
data=${OMSTORE_BENCH_DATA:-bench-data}
runs=${OMSTORE_BENCH_RUNS:-3}
mkdir -p "$data"

make_export() { # folder, extra options
    folder=$1
    shift
    # the truth of the replay is written before its pickle: a folder that holds D.pkl may still be half-made
    if [ ! -e "$data/$folder/complete" ]; then
        echo "== making the export $data/$folder"
        python tools/make_export.py "$data/$folder" --agents 3 --cells --transitions 1000000 --replay-action dict "$@"
        touch "$data/$folder/complete"
    fi
}
make_export full
make_export tenth --fraction 0.1

status=0
bench() { # script, arguments
    if [ -e "tools/bench/$1" ]; then
        echo
        echo "== $*"
        script=$1; shift; python "tools/bench/$script" "$@" || status=1
    fi
}
bench bench_convert.py --export "$data/full" --tenth "$data/tenth" --runs "$runs"
bench bench_lookup.py
bench bench_lookup.py --build-50m
bench bench_rows.py
bench bench_open.py
bench bench_kill.py
bench bench_build.py
bench bench_build.py --agents 4 --limit 1G --encodings factored --runs 1
bench bench_sample.py
bench bench_sweep.py
bench bench_policies.py
bench bench_sweep.py --agents 4 --rows factored --respond --steps 20 --rounds 3
bench bench_rollout_speed.py
bench bench_rollouts.py
bench bench_training.py
bench bench_training_memory.py
bench bench_training_memory.py --agents 4 --root-states 5120
bench bench_learning.py
bench bench_learning.py --agents 3 --seeds 1 --export "$data/chased"
bench bench_resume.py
exit $status
