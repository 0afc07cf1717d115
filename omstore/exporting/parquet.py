"""Parquet: a table of the edges and one of the nodes, in a folder; needs the extra ``parquet``."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.errors import UsageError
from omstore.exporting.columns import Column, Source, edge_columns
from omstore.format import durable
from omstore.format.manifest import TOOL_VERSION

__all__ = ["FILES", "require_pyarrow", "write_parquet"]

FILES = ("edges.parquet", "nodes.parquet")
"""What the folder holds."""

_EDGES = 1 << 19
"""Edges of a row group: some 20 MiB before compression, whatever the budget, so that the bytes are the same."""

_NODES = 1 << 17


def require_pyarrow() -> Any:
    """Import pyarrow's Parquet module.

    Raises
    ------
    UsageError
        If it isn't installed.
    """
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise UsageError(
            "`--to parquet` needs pyarrow, which isn't installed",
            "Install it: pip install 'omstore[parquet]'",
        ) from error


def write_parquet(source: Source, folder: Path) -> None:
    """Write a graph as two Parquet tables.

    ``edges.parquet``, in the order of the rows: ``node``, ``joint_action``, ``next_node`` (int64),
    ``probability``, ``reward_AGENT``, ``done``, ``kept_NAME``. ``nodes.parquet``: ``node``, ``state`` (the
    packed vector, Wb bytes) and ``legacy_id``. Agents, actions and the states' width are in the files'
    metadata, key ``omstore``, as JSON. Compressed by zstd.

    Parameters
    ----------
    source : Source
    folder : Path
        An empty folder.

    Notes
    -----
    Memory: two row groups of 2^19 edges, about 60 bytes an edge and more with many agents.
    """
    parquet = require_pyarrow()
    arrow = importlib.import_module("pyarrow")
    graph = source.graph
    about = {
        "omstore": json.dumps(
            {
                "tool_version": TOOL_VERSION,
                "agents": list(graph.agents),
                "num_actions": list(graph.num_actions),
                "num_nodes": graph.num_nodes,
                "num_joint_actions": graph.num_joint_actions,
                "num_edges": graph.num_edges,
                "state": {"width": source.codec.width, "component_bits": source.codec.component_bits},
            }
        )
    }
    columns = edge_columns(source, np.int64)
    _write_table(arrow, parquet, folder / FILES[0], _edge_groups(arrow, source, columns), about)
    _write_table(arrow, parquet, folder / FILES[1], _node_groups(arrow, source), about)


def _edge_groups(arrow: Any, source: Source, columns: Sequence[Column]) -> Iterator[Any]:
    """Give the row groups of the edges as Arrow tables."""
    graph = source.graph

    def parts() -> Iterator[dict[str, NDArray[Any]]]:
        for chunk in source.sweep():
            rows = np.repeat(chunk.rows, chunk.successors.outdegree)
            node, joint_action = np.divmod(rows, graph.num_joint_actions)
            part = {"node": node, "joint_action": joint_action}
            yield part | {column.name: column.of(chunk) for column in columns}

    def arrays(group: Mapping[str, NDArray[Any]]) -> Iterator[tuple[str, Any]]:
        for name, values in group.items():
            if name == "reward":
                for agent, label in enumerate(graph.agents):
                    yield f"reward_{label}", arrow.array(np.ascontiguousarray(values[:, agent]))
            else:
                yield name, _arrow_array(arrow, values)

    empty = {column.name: np.empty((0, *column.item_shape), column.dtype) for column in columns}
    empty = {"node": np.empty(0, np.int64), "joint_action": np.empty(0, np.int64)} | empty
    for group in _regrouped(parts(), _EDGES, empty):
        yield arrow.table(dict(arrays(group)))


def _node_groups(arrow: Any, source: Source) -> Iterator[Any]:
    """Give the row groups of the nodes as Arrow tables."""
    graph, size = source.graph, source.codec.packed_bytes

    def parts() -> Iterator[dict[str, NDArray[Any]]]:
        for nodes in source.nodes(size):
            part: dict[str, NDArray[Any]] = {"node": nodes, "state": graph.packed_states(nodes)}
            if source.has_legacy_ids:
                part["legacy_id"] = graph.legacy_ids(nodes)
            yield part

    for group in _regrouped(parts(), _NODES, {}):
        columns = {name: arrow.array(values) for name, values in group.items() if name != "state"}
        buffer = arrow.py_buffer(np.ascontiguousarray(group["state"]))
        states = arrow.FixedSizeBinaryArray.from_buffers(
            arrow.binary(size), len(group["node"]), [None, buffer]
        )
        yield arrow.table({"node": columns.pop("node"), "state": states} | columns)


def _regrouped(
    parts: Iterator[dict[str, NDArray[Any]]], size: int, empty: dict[str, NDArray[Any]]
) -> Iterator[dict[str, NDArray[Any]]]:
    """Cut columns that come in parts of any length into groups of `size`; `empty` where there are none."""
    pending: list[dict[str, NDArray[Any]]] = []
    count = given = 0

    def joined() -> dict[str, NDArray[Any]]:
        return {name: np.concatenate([part[name] for part in pending]) for name in pending[0]}

    for part in parts:
        length = len(next(iter(part.values())))
        first = 0
        while first < length:
            last = min(length, first + size - count)
            pending.append({name: values[first:last] for name, values in part.items()})
            count, first = count + last - first, last
            if count == size:
                yield joined()
                pending, count = [], 0
                given += 1
    if pending:
        yield joined()
    elif not given:
        yield empty


def _arrow_array(arrow: Any, values: NDArray[Any]) -> Any:
    """Make an Arrow array; items that are arrays become lists of fixed size."""
    if values.ndim == 1:
        return arrow.array(values)
    flat = arrow.array(values.reshape(-1))
    return arrow.FixedSizeListArray.from_arrays(flat, int(np.prod(values.shape[1:])))


def _write_table(
    arrow: Any, parquet: Any, path: Path, tables: Iterator[Any], about: Mapping[str, str]
) -> None:
    # Written through a file of Python's, so that what the system says of a full disk stays as it is.
    with path.open("xb") as file:
        writer = None
        synced = 0
        try:
            for table in tables:
                if writer is None:
                    schema = table.schema.with_metadata(about)
                    writer = parquet.ParquetWriter(file, schema, compression="zstd", compression_level=3)
                writer.write_table(table.cast(writer.schema), row_group_size=table.num_rows or None)
                file.flush()
                # Written back as it grows: a job whose limit counts page cache can drop these pages then.
                durable._sync_range(file.fileno(), synced, file.tell() - synced, durable._SYNC_WRITE)
                synced = file.tell()
            assert writer is not None  # there is one table at least
            writer.close()
        except BaseException:
            if writer is not None:
                writer.is_open = False  # else it would be closed, and written to, when it is deleted
            raise
