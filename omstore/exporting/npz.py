"""npz files: NumPy's own, and SciPy's sparse matrices, which are npz files with certain members."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.exporting.columns import Column, Source, edge_columns
from omstore.exporting.containers import Member, ZipContainer
from omstore.rows.encoding import next_node_dtype

__all__ = ["write_npz", "write_scipy"]


def write_npz(source: Source, path: Path) -> None:
    """Write a graph as an npz file that ``numpy.load`` opens.

    Members: ``offsets`` (N*A + 1,) int64, and by edge ``next_node`` (uint32, or uint64 from 2^32 nodes on),
    ``probability``, ``reward`` (E, agents) unless it is left out, ``done``, ``kept_NAME``; by node ``state``
    (N, Wb) uint8, packed, and ``legacy_id``; ``state_width``, ``state_component_bits``, ``agents``, ``num_actions``.
    Row ``node * A + joint_action`` has edges ``offsets[row]:offsets[row + 1]``.

    Parameters
    ----------
    source : Source
    path : Path
        An existing file that is written over.
    """
    columns = edge_columns(source, next_node_dtype(source.graph.num_nodes))
    _write(source, path, "offsets", np.dtype("<i8"), columns, {})


def write_scipy(source: Source, path: Path) -> None:
    """Write a graph's probabilities as an npz file that ``scipy.sparse.load_npz`` opens; SciPy isn't needed.

    A csr matrix of N * A rows and N columns. Indices are 32-bit while nodes and edges are fewer than 2^31,
    as SciPy has it. The other members are those of :func:`write_npz`; what they hold by edge stands beside
    the entry of ``data`` with the same position, and ``numpy.load`` reads it.

    Parameters
    ----------
    source, path
        As for :func:`write_npz`.
    """
    graph = source.graph
    wide = max(graph.num_edges, graph.num_nodes) >= 1 << 31
    index = np.dtype("<i8" if wide else "<i4")
    names = {"next_node": "indices", "probability": "data"}
    columns = [
        Column(names.get(column.name, column.name), column.dtype, column.item_shape, column.of)
        for column in edge_columns(source, index)
    ]
    head = {
        "format": np.array(b"csr"),
        "shape": np.array([graph.num_rows, graph.num_nodes], np.int64),
    }
    _write(source, path, "indptr", index, columns, head)


def _write(
    source: Source,
    path: Path,
    offsets_name: str,
    offsets_dtype: np.dtype[Any],
    columns: Sequence[Column],
    head: dict[str, NDArray[Any]],
) -> None:
    graph, codec = source.graph, source.codec
    small = head | {
        "agents": np.array(graph.agents),
        "num_actions": np.array(graph.num_actions, np.int64),
        "state_width": np.array(codec.width, np.int64),
        "state_component_bits": np.array(codec.component_bits, np.int64),
    }
    edges = graph.num_edges
    arrays = [(name, value.dtype, value.shape) for name, value in small.items()]
    arrays.append((offsets_name, offsets_dtype, (graph.num_rows + 1,)))
    arrays += [(column.name, column.dtype, (edges, *column.item_shape)) for column in columns]
    arrays.append(("state", np.dtype(np.uint8), (graph.num_nodes, codec.packed_bytes)))
    if source.has_legacy_ids:
        arrays.append(("legacy_id", np.dtype("<i8"), (graph.num_nodes,)))
    heads = {f"{name}.npy": _npy_head(dtype, shape) for name, dtype, shape in arrays}
    members = [
        Member(f"{name}.npy", len(heads[f"{name}.npy"]) + _nbytes(dtype, shape))
        for name, dtype, shape in arrays
    ]
    with ZipContainer(path, members) as file:
        for name, npy_head in heads.items():
            file[name].write(npy_head)
        for name, value in small.items():
            file[f"{name}.npy"].write(value.tobytes())
        _write_nodes(source, file)
        offsets = file[f"{offsets_name}.npy"]
        offsets.write(np.zeros(1, offsets_dtype))
        first_edge = 0
        for chunk in source.sweep():
            sums = chunk.successors.offsets
            offsets.write((sums[1:] + first_edge).astype(offsets_dtype))
            first_edge += int(sums[-1])
            for column in columns:
                file[f"{column.name}.npy"].write(column.of(chunk))


def _write_nodes(source: Source, file: ZipContainer) -> None:
    graph = source.graph
    for nodes in source.nodes(source.codec.packed_bytes):
        file["state.npy"].write(graph.packed_states(nodes))
        if source.has_legacy_ids:
            file["legacy_id.npy"].write(graph.legacy_ids(nodes).astype("<i8"))


def _npy_head(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    text = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(text, {"descr": descr, "fortran_order": False, "shape": shape})
    return text.getvalue()


def _nbytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    size = dtype.itemsize
    for length in shape:  # numpy's product would overflow where the file only wouldn't fit
        size *= length
    return size
