"""Opening a small and a large store: time and memory, each in a fresh process.

    python tools/bench/bench_open.py

Opening must cost milliseconds and a few MiB whatever the size. The large store (``--scale 1``: 20,000
nodes, 2.5 million rows, about 67 million edges, 0.4 GB) is 2000 times the small one. numba and numpy are
loaded before measuring.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # when run as a script

import omstore
from omstore.memory import format_bytes, memory_use
from tools.bench.synthetic import write_synthetic

MOST_SECONDS = 0.05
MOST_BYTES = 8 << 20


def child(export: str) -> None:
    """Open the store, read a little, and report as JSON."""
    omstore.open(export).close()  # loads the modules
    before = memory_use()
    start = time.perf_counter()
    store = omstore.open(export)
    seconds = time.perf_counter() - start
    after = memory_use()
    graph, replay = store.graph, store.replay
    assert graph is not None
    assert replay is not None
    nodes = np.arange(64) * (graph.num_nodes // 64)
    graph.sample(nodes, nodes % 125, np.random.default_rng(0))
    start = time.perf_counter()
    graph.sample(nodes, nodes % 125, np.random.default_rng(0))
    print(
        json.dumps(
            {
                "seconds": seconds,
                "anonymous": after.anonymous - before.anonymous,
                "file_backed": after.file_backed - before.file_backed,
                "sample": time.perf_counter() - start,
                "edges": graph.num_edges,
            }
        )
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; exit code 1 where opening is dear."""
    parser = argparse.ArgumentParser(description="Open a small and a large store.")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        child(options.child)
        return 0
    held = True
    with tempfile.TemporaryDirectory(prefix="omstore-bench-") as name:
        for size, num_nodes in (("small", 64), ("large", max(64, int(20_000 * options.scale)))):
            export = Path(name) / size
            write_synthetic(export, num_nodes, transitions=num_nodes * 10)
            on_disk = sum(path.stat().st_size for path in export.rglob("*") if path.is_file())
            command = [sys.executable, __file__, "--child", str(export)]
            reports = [
                json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
                for _ in range(options.rounds)
            ]
            middle = {key: float(np.median([report[key] for report in reports])) for key in reports[0]}
            fits = (
                middle["seconds"] <= MOST_SECONDS
                and middle["anonymous"] + middle["file_backed"] <= MOST_BYTES
            )
            held &= fits
            print(
                f"{'holds' if fits else 'FAILS'}: {size} store ({format_bytes(on_disk)}, "
                f"{middle['edges']:,.0f} edges) opens in {middle['seconds'] * 1e3:.1f} ms, "
                f"anonymous {format_bytes(middle['anonymous'])}, "
                f"mapped pages {format_bytes(middle['file_backed'])}; "
                f"then 64 samples in {middle['sample'] * 1e6:.0f} us"
            )
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
