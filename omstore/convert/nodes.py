"""The nodes: packed states sorted into their final order, the legacy ids both ways, and the index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import kernel
from omstore.convert.keysort import key_of_integers, sort_by_key
from omstore.convert.records import RecordReader
from omstore.convert.resolve import IdNodes, NodeResolver, StateNodes
from omstore.errors import BadDataError
from omstore.format.hot import drop_pages, map_hot
from omstore.format.states import StateCodec, component_bits_for
from omstore.index import StateIndex, build_index
from omstore.legacy.fields import Field
from omstore.legacy.mapping import GraphMapping
from omstore.publish.staging import Staging
from omstore.rows.encoding import next_node_dtype

__all__ = ["NodeTable", "build_nodes", "choose_codec"]

_STEP = 1 << 16
_CACHE = 1 << 16


@dataclass(frozen=True)
class NodeTable:
    """The nodes of a graph in staging.

    Attributes
    ----------
    num_nodes : int
    codec : StateCodec
    index : StateIndex
        Over the mapped states and slots in staging.
    ids : IdNodes
        Legacy ids -> nodes.
    endpoints : NodeResolver
        What the edges' endpoints go through: `ids`, or the states.
    notes : tuple of str
    """

    num_nodes: int
    codec: StateCodec
    index: StateIndex
    ids: IdNodes
    endpoints: NodeResolver
    notes: tuple[str, ...]


def choose_codec(width: int, uses: list[tuple[str, RecordReader, Field]]) -> StateCodec:
    """Choose how states are packed from all the states there are: nodes, endpoints, observations.

    Raises
    ------
    BadDataError
        Naming the first record whose state has a component that is no whole number from 0 to 2^32 - 1.
    """
    largest = 0.0
    for where, reader, field in uses:
        if not reader.num_rows:
            continue
        seen = reader.extent(field)
        if seen.minimum < 0 or seen.maximum >= 2**32 or not (seen.whole and seen.finite):
            raise _bad_component(where, reader, field)
        largest = max(largest, seen.maximum)
    return StateCodec(width, component_bits_for(int(largest)))


def _bad_component(where: str, reader: RecordReader, field: Field) -> BadDataError:
    message = "there is a component"
    for first, (values,) in reader.chunks([field]):
        good = (values >= 0) & (values < 2**32)
        if values.dtype.kind == "f":
            good &= np.trunc(values) == values
        if not good.all():
            row, component = (int(x[0]) for x in np.nonzero(~good))
            message = (
                f"record {first + row}, field {field.name}: component {component} is {values[row, component]}"
            )
            break
    return BadDataError(
        f"{where}: {message}, where states are made of whole numbers from 0 to 2^32 - 1",
        "If this isn't the state, say which field is with --map node_state=NAME or --map observation=NAME.",
    )


@kernel
def _fresh(
    keys: NDArray[np.uint8], cache: NDArray[np.uint8], used: NDArray[np.uint8], fresh: NDArray[np.uint8]
) -> None:
    """Mark keys that a small cache of earlier ones doesn't hold: most repetitions are near each other."""
    size = keys.shape[1]
    mask = np.uint64(cache.shape[0] - 1)
    for i in range(keys.shape[0]):
        mixed = np.uint64(0xCBF29CE484222325)
        for k in range(size):
            mixed = (mixed ^ np.uint64(keys[i, k])) * np.uint64(0x100000001B3)
        mixed ^= mixed >> np.uint64(29)
        slot = np.int64((mixed >> np.uint64(7)) & mask)
        same = used[slot] != 0
        if same:
            for k in range(size):
                if cache[slot, k] != keys[i, k]:
                    same = False
                    break
        if same:
            fresh[i] = 0
        else:
            fresh[i] = 1
            used[slot] = 1
            for k in range(size):
                cache[slot, k] = keys[i, k]


def build_nodes(
    mapping: GraphMapping,
    nodes: RecordReader | None,
    edges: RecordReader,
    codec: StateCodec,
    staging: Staging,
    budget: int,
    where: str,
) -> NodeTable:
    """Write ``nodes/`` and ``index/`` into staging.

    Parameters
    ----------
    mapping : GraphMapping
    nodes, edges : RecordReader
        `nodes` is None when the pickle has no nodes: then they are the distinct endpoints of the edges.
    codec : StateCodec
        From `choose_codec`.
    staging : Staging
    budget : int
        Bytes of anonymous memory for sorting and for the index.
    where : str
        File name for errors.

    Raises
    ------
    BadDataError
        If there are no nodes, two nodes have the same state, or two the same id.
    """
    notes = []
    by_value = False  # endpoints that are the one-component states themselves
    dtype = np.dtype([("key", "u1", (codec.packed_bytes,)), ("position", "<i8"), ("id", "<i8")])
    if nodes is not None and mapping.nodes is not None:
        by_value = mapping.nodes.id is None and codec.width == 1
        has_ids = mapping.nodes.id is not None or by_value
        source: Callable[[], Iterator[NDArray[Any]]] = _node_records(mapping, nodes, codec, dtype, by_value)
        count = nodes.num_rows
        name = f"{where}: {mapping.nodes.records.name}"
    else:
        by_value = has_ids = codec.width == 1
        spooled = _EndpointSpool(staging.scratch / "endpoints", codec, dtype)
        spooled.fill(mapping, edges)
        source, count, name = spooled.records, spooled.count, f"{where}: {mapping.edges.name}"
        notes.append(
            "the pickle has no nodes: they are the distinct endpoints of the edges, their ids the "
            "states' order"
            if not by_value
            else "the pickle has no nodes: they are the distinct endpoints of the edges, and a node's "
            "state is its id"
        )
    if not count:
        raise BadDataError(f"{name}: the graph is empty, there are no nodes")
    merge = nodes is None
    num_nodes = _write_sorted(source, count, dtype, staging, budget, name, merge=merge, use_id=has_ids)
    packed = map_hot(staging.path / "nodes/state")
    ids = _write_legacy_ids(
        staging, num_nodes, budget, name, identity=merge and not by_value, sorted_ids=has_ids
    )
    slots = staging.hot("index/slots", np.uint64)
    build_index(packed, slots, max(budget, 8 << 20))
    slots.close()
    index = StateIndex(map_hot(staging.path / "index/slots"), packed)
    by_id = mapping.source.width == 1 and (by_value or nodes is not None)
    endpoints: NodeResolver = ids if by_id else StateNodes(codec, index)
    if not by_id and mapping.source.width != codec.width:
        raise BadDataError(
            f"{where}: {mapping.edges.name}: source {mapping.source.name} has {mapping.source.width} "
            f"components, "
            f"where states have {codec.width}",
            "Say which fields are the endpoints with --map source=NAME --map next_node=NAME, or the "
            "nodes with --map nodes=NAME.",
        )
    return NodeTable(num_nodes, codec, index, ids, endpoints, tuple(notes))


def _node_records(
    mapping: GraphMapping, nodes: RecordReader, codec: StateCodec, dtype: np.dtype[Any], by_value: bool
) -> Callable[[], Iterator[NDArray[Any]]]:
    def records() -> Iterator[NDArray[Any]]:
        table = mapping.nodes
        if table is None:
            return
        fields = [table.state] + ([table.id] if table.id is not None else [])
        for first, values in nodes.chunks(fields):
            out = np.empty(len(values[0]), dtype)
            out["key"] = codec.pack(values[0])
            out["position"] = np.arange(first, first + len(out))
            out["id"] = (
                values[1][:, 0] if table.id is not None else values[0][:, 0] if by_value else out["position"]
            )
            yield out

    return records


class _EndpointSpool:
    """The endpoints of the edges, near repetitions left out, in a scratch file."""

    def __init__(self, path: Path, codec: StateCodec, dtype: np.dtype[Any]) -> None:
        self.path = path
        self.count = 0
        self._codec = codec
        self._dtype = dtype

    def fill(self, mapping: GraphMapping, edges: RecordReader) -> None:
        codec = self._codec
        cache = np.zeros((_CACHE, codec.packed_bytes), np.uint8)
        used = np.zeros(_CACHE, np.uint8)
        with self.path.open("wb") as file:
            for first, ends in edges.chunks([mapping.source, mapping.next_node]):
                for values in ends:
                    keys = codec.pack(values)
                    fresh = np.empty(len(keys), np.uint8)
                    _fresh(keys, cache, used, fresh)
                    chosen = np.flatnonzero(fresh)
                    out = np.empty(len(chosen), self._dtype)
                    out["key"] = keys[chosen]
                    out["position"] = first + chosen
                    out["id"] = values[chosen, 0] if codec.width == 1 else 0
                    file.write(out.view(np.uint8).data)
                    self.count += len(out)

    def records(self) -> Iterator[NDArray[Any]]:
        size = self._dtype.itemsize
        with self.path.open("rb") as file:
            while data := file.read(_STEP * size):
                yield np.frombuffer(data, self._dtype)


def _write_sorted(
    source: Callable[[], Iterator[NDArray[Any]]],
    count: int,
    dtype: np.dtype[Any],
    staging: Staging,
    budget: int,
    where: str,
    *,
    merge: bool,
    use_id: bool,
) -> int:
    """Write ``nodes/state`` and ``nodes/legacy_id`` in the order of the packed states."""
    states = staging.hot("nodes/state", np.uint8, (dtype["key"].itemsize,))
    ids = staging.hot("nodes/legacy_id", np.int64)
    num_nodes = 0
    for part in sort_by_key(source, count, dtype, staging.scratch, budget):
        keys = part["key"]
        repeated = (keys[1:] == keys[:-1]).all(axis=1)
        if merge:
            part = part[np.concatenate(([True], ~repeated))]
        elif repeated.any():
            at = int(np.argmax(repeated))
            one, other = int(part["position"][at]), int(part["position"][at + 1])
            raise BadDataError(
                f"{where}: records {one} and {other} have the same state; every node's state must be its own",
                "If the state is only a part of what tells nodes apart, say which field is with --map "
                "node_state=NAME.",
            )
        for first in range(0, len(part), _STEP):
            block = part[first : first + _STEP]
            states.append(np.ascontiguousarray(block["key"]))
            if use_id or not merge:
                ids.append(np.ascontiguousarray(block["id"]))
            else:
                ids.append(np.arange(num_nodes + first, num_nodes + first + len(block), dtype=np.int64))
        num_nodes += len(part)
    states.close()
    ids.close()
    return num_nodes


def _write_legacy_ids(
    staging: Staging, num_nodes: int, budget: int, where: str, *, identity: bool, sorted_ids: bool
) -> IdNodes:
    """Write ``nodes/node_of_legacy``; refuse two nodes of one id."""
    legacy = map_hot(staging.path / "nodes/legacy_id")
    dtype = next_node_dtype(num_nodes)
    name = "nodes/node_of_legacy"
    if not sorted_ids:  # ids are positions: a permutation of 0..N-1
        nodes = staging.create_hot(name, dtype, (num_nodes,))
        for first in range(0, num_nodes, _STEP):
            block = legacy[first : first + _STEP]
            nodes[block] = np.arange(first, first + len(block), dtype=dtype)
        return IdNodes(nodes, None)
    record = np.dtype([("key", "u1", (8,)), ("id", "<i8"), ("node", "<i8")])

    def chunks() -> Iterator[NDArray[Any]]:
        for first in range(0, num_nodes, _STEP):
            block = np.array(legacy[first : first + _STEP])
            out = np.empty(len(block), record)
            out["key"] = key_of_integers(block)
            out["id"] = block
            out["node"] = np.arange(first, first + len(block))
            yield out
        drop_pages(legacy)

    writer = staging.hot(name, dtype)
    path = staging.scratch / "sorted-ids"
    contiguous, done = True, 0
    with path.open("wb") as file:
        for part in sort_by_key(chunks, num_nodes, record, staging.scratch, budget):
            ids = np.ascontiguousarray(part["id"])
            repeated = ids[1:] == ids[:-1]
            if repeated.any():
                raise BadDataError(
                    f"{where}: two nodes have the id {ids[int(np.argmax(repeated))]}",
                    "If the ids are in another field, say which with --map node_id=NAME.",
                )
            contiguous &= bool(ids[0] == done and ids[-1] == done + len(ids) - 1)
            writer.append(part["node"].astype(dtype))
            file.write(ids.view(np.uint8).data)
            done += len(ids)
    writer.close()
    mapped = map_hot(staging.path / name)
    return IdNodes(mapped, None if contiguous else np.memmap(path, np.int64, mode="r"))
