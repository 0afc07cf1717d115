"""Write an export: real objects, the real pickle module, one file at a time."""

from __future__ import annotations

import gc
import gzip
import lzma
import multiprocessing
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import IO, cast

import numpy as np

from tools.exports.graph_file import graph_object
from tools.exports.records import legacy_classes
from tools.exports.replay_file import replay_object
from tools.exports.spec import ExportSpec, make_world
from tools.exports.truth import GraphTruth, Truth, graph_truth, load_truth, replay_truth

__all__ = ["write_export"]


def write_export(out: str | Path, spec: ExportSpec, *, isolate: bool = False) -> Truth:
    """Write ``wm/`` with the pickles, and ``truth/`` with `spec` and the true values, into the folder `out`.

    Parameters
    ----------
    out : path
        Made if absent; files of an earlier export there are replaced.
    spec : ExportSpec
    isolate : bool
        Write each file in a process of its own, so that its gigabytes return to the system.

    Returns
    -------
    Truth

    Notes
    -----
    The same spec gives the same bytes with the same versions of Python and numpy. At full scale (ten
    million edges with dicts) the graph takes about 15 GiB while it is pickled: as many records as edges,
    and the pickler's memo.
    """
    out = Path(out)
    (out / "wm").mkdir(parents=True, exist_ok=True)
    (out / "truth").mkdir(exist_ok=True)
    for part in ("graph", "replay"):
        for old in (out / "wm" / spec.file_name(part), out / "truth" / f"{part}.npz"):
            old.unlink(missing_ok=True)
    (out / "truth" / "spec.json").write_text(spec.to_json())
    for part in spec.parts:
        if isolate:
            process = multiprocessing.get_context("fork").Process(target=_write_part, args=(out, spec, part))
            process.start()
            process.join()
            if process.exitcode:
                raise RuntimeError(f"writing {spec.file_name(part)} ended with exit code {process.exitcode}")
        else:
            _write_part(out, spec, part)
    return load_truth(out)


def _write_part(out: Path, spec: ExportSpec, part: str) -> None:
    world = make_world(spec)
    truth = graph_truth(spec, world) if part == "graph" else replay_truth(spec, world)
    np.savez(out / "truth" / f"{part}.npz", **{f.name: getattr(truth, f.name) for f in fields(truth)})
    with legacy_classes(spec) as classes, _collector_off():
        if isinstance(truth, GraphTruth):
            root = graph_object(spec, world, truth, classes)
        else:
            root = replay_object(spec, world, truth, classes)
        with _open(out / "wm" / spec.file_name(part), spec.compress) as file:
            pickle.dump(root, file, protocol=spec.protocol)


@contextmanager
def _collector_off() -> Iterator[None]:
    """No garbage is made, and looking for it among millions of objects takes most of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _open(path: Path, compress: str) -> IO[bytes]:
    if compress == "gzip":
        return cast("IO[bytes]", gzip.GzipFile(path, "wb", compresslevel=6, mtime=0))
    if compress == "xz":
        return cast("IO[bytes]", lzma.open(path, "wb", preset=1))
    if compress == "zstd":
        try:
            from compression import zstd  # type: ignore[import-not-found,unused-ignore]
        except ImportError:
            from backports import zstd  # before Python 3.14
        return cast("IO[bytes]", zstd.open(path, "wb"))
    return path.open("wb")
