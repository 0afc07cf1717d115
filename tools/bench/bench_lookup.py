"""Looking states up, beside a dict keyed by the bytes of the state; and building the index of 50 million
states.

    python tools/bench/bench_lookup.py
    python tools/bench/bench_lookup.py --build-50m

Two tables: the 85,184 states of 3-agent pursuit, and a large one of random states (``--scale`` times
2,000,000). Queries are present states in random order, as (B, 147) uint8 vectors of 0 and 1; a dict looks
each one's ``tobytes()`` up.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # when run as a script

from omstore.format.hot import HotWriter, map_hot
from omstore.format.states import StateCodec
from omstore.index import StateIndex, build_index
from omstore.memory import PeakMemory, format_bytes
from tools.bench.limits import run_limited
from tools.bench.timing import alternate, verdict
from tools.worlds.pursuit import Pursuit

WIDTH = 147
CLAIM = 5.0  # times as fast as the dict


def random_states(count: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Distinct packed states: the first eight bytes number them, scrambled so that they look random."""
    packed = rng.integers(0, 256, (count, -(-WIDTH // 8)), np.uint8)
    numbers = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # odd: a permutation
    packed[:, :8] = numbers.view(np.uint8).reshape(-1, 8)
    packed[:, -1] &= 0xFF << (-WIDTH % 8) & 0xFF
    return packed


def compare(name: str, packed: NDArray[np.uint8], folder: Path, queries: int, rounds: int) -> float:
    """Print the times on one table, and return how many times as fast as the dict we are."""
    codec = StateCodec(WIDTH, 1)
    with HotWriter(folder / "state", np.uint8, (codec.packed_bytes,)) as states:
        states.append(packed)
    start = time.perf_counter()
    with HotWriter(folder / "slots", np.uint64) as slots:
        build_index(packed, slots)
    built = time.perf_counter() - start
    index = StateIndex(map_hot(folder / "slots"), map_hot(folder / "state"))
    wanted = np.random.default_rng(1).integers(0, len(packed), queries)
    vectors = codec.unpack(packed[wanted])
    keys = packed[wanted]
    by_vector = {row.tobytes(): node for node, row in enumerate(codec.unpack(packed))}
    by_key = {row.tobytes(): node for node, row in enumerate(packed)}
    assert index.lookup_bits(vectors).tolist() == wanted.tolist()
    seconds = alternate(
        {
            "index, vectors": lambda: index.lookup_bits(vectors),
            "dict, vectors": lambda: [by_vector.get(row.tobytes(), -1) for row in vectors],
            "index, packed": lambda: index.lookup_packed(keys),
            "dict, packed": lambda: [by_key.get(row.tobytes(), -1) for row in keys],
        },
        rounds,
    )
    print(f"{name}: {len(packed):,} states, {queries:,} lookups, index built in {built:.2f} s")
    for way, value in seconds.items():
        print(f"  {way:15} {value * 1e3:9.1f} ms  {value / queries * 1e9:7.1f} ns a lookup")
    ratio = seconds["dict, vectors"] / seconds["index, vectors"]
    packed_ratio = seconds["dict, packed"] / seconds["index, packed"]
    print(f"  {ratio:.1f} times as fast as the dict on vectors, {packed_ratio:.1f} times on packed states")
    return ratio


def build_in_child(count: int, limit: int) -> bool:
    """Build the index of `count` states in a process that may allocate no more than `limit` bytes."""
    with tempfile.TemporaryDirectory(prefix="omstore-bench-") as name:
        folder = Path(name)
        rng = np.random.default_rng(0)
        with HotWriter(folder / "state", np.uint8, (-(-WIDTH // 8),)) as states:
            for first in range(0, count, 1 << 20):
                part = random_states(min(1 << 20, count - first), rng)
                numbers = np.arange(first, first + len(part), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
                part[:, :8] = numbers.view(np.uint8).reshape(-1, 8)
                states.append(part)
        # OpenBLAS reserves memory for every thread it might start, which RLIMIT_DATA would count.
        env = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--child", name]
        run = run_limited(command, limit, use_cgroup=False, capture=True, env=env)
        print(f"index of {count:,} states under RLIMIT_DATA {format_bytes(limit)}: {run.describe()}")
        if run.returncode:
            print(run.stderr)
            return False
        report = json.loads(run.stdout)
        print(
            f"  built in {report['seconds']:.1f} s, budget {format_bytes(report['budget'])}; "
            f"anonymous memory {format_bytes(report['before'])} before, "
            f"{format_bytes(report['anonymous'])} at the peak; "
            f"mapped pages {format_bytes(report['file_backed'])}; {report['slots']:,} slots; "
            "a sample of states was found"
        )
        grouped = run_limited([*command, "--again"], limit, capture=True, env=env)
        print(f"  and in a cgroup that counts the page cache too: {grouped.describe()}")
        return grouped.returncode == 0


def child(folder: Path, again: bool) -> None:
    """Build, look some states up, and report as JSON."""
    packed = map_hot(folder / "state")
    budget = 512 << 20
    with PeakMemory() as before:
        pass
    start = time.perf_counter()
    with PeakMemory() as peak, HotWriter(folder / f"slots{again:d}", np.uint64) as slots:
        total = build_index(packed, slots, budget)
    seconds = time.perf_counter() - start
    index = StateIndex(map_hot(folder / f"slots{again:d}"), packed)
    nodes = np.random.default_rng(2).integers(0, len(packed), 100_000)
    assert np.array_equal(index.lookup_packed(packed[nodes]), nodes)
    report: dict[str, Any] = {
        "seconds": seconds,
        "budget": budget,
        "before": before.anonymous,
        "anonymous": peak.anonymous,
        "file_backed": peak.file_backed,
        "slots": total,
    }
    print(json.dumps(report))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; exit code 1 where a claim fails."""
    parser = argparse.ArgumentParser(description="Look states up, beside a dict.")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="size of the large table, and of the 50 million"
    )
    parser.add_argument("--queries", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--build-50m", action="store_true", help="build the index of 50,000,000 states in 1 GiB"
    )
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--again", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        child(options.child, options.again)
        return 0
    if options.build_50m:
        return 0 if build_in_child(int(50_000_000 * options.scale), 1 << 30) else 1
    pursuit = Pursuit(3)
    small = StateCodec(WIDTH, 1).pack(pursuit.vectors(np.arange(pursuit.num_nodes)))
    large = random_states(int(2_000_000 * options.scale), np.random.default_rng(0))
    held = True
    for name, packed in (("pursuit", small), ("large", large)):
        with tempfile.TemporaryDirectory(prefix="omstore-bench-") as folder:
            ratio = compare(name, packed, Path(folder), options.queries, options.rounds)
            held &= verdict(f"lookups in the {name} table, times as fast as a dict", ratio, CLAIM)
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
