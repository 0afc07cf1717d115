"""A model's states as nodes: sorted by state vector, with the index over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.convert.keysort import sort_by_key
from omstore.errors import ModelError
from omstore.format.hot import map_hot
from omstore.format.states import StateCodec, component_bits_for
from omstore.index import StateIndex, build_index
from omstore.model.checks import Answers
from omstore.model.numbering import ListedNumbering, Numbering, ProductNumbering
from omstore.model.protocol import TransitionModel
from omstore.publish.staging import Staging

__all__ = ["StagedNodes", "choose_model_codec", "stage_nodes"]

_STEP = 1 << 14
_TRIED = 1 << 10


@dataclass(frozen=True)
class StagedNodes:
    """The nodes of a model in staging.

    Attributes
    ----------
    numbering : Numbering
        Which state a node is.
    codec : StateCodec
    packed : (N, Wb) uint8
        ``nodes/state``, mapped.
    index : StateIndex
    """

    numbering: Numbering
    codec: StateCodec
    packed: NDArray[np.uint8]
    index: StateIndex

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.numbering.num_nodes


def stage_nodes(
    model: TransitionModel,
    staging: Staging,
    budget: int,
    numbers: NDArray[np.int64] | None = None,
    tick: Callable[[int], object] = lambda n: None,
) -> StagedNodes:
    """Write ``nodes/state`` and ``index/slots`` into staging.

    The states are written as they are enumerated where vectors sort as the components do, one before the
    other, each in an order of its own; else they are sorted out of core.

    Parameters
    ----------
    model : TransitionModel
    staging : Staging
    budget : int
        Bytes of anonymous memory for sorting and for the index.
    numbers : (N,) int64, optional
        Product numbers of the states that were explored, ascending; None: all of the product.
    tick : callable
        Told numbers of states; in total N.

    Raises
    ------
    ModelError
        If a state vector isn't made of whole numbers, or two states have the same.
    """
    codec = choose_model_codec(model, numbers)
    numbering: Numbering | None = None
    if numbers is None:
        numbering = _written_in_order(model, staging, codec, tick)
    if numbering is None:
        numbering = _sorted(model, staging, codec, budget, numbers, tick)
    packed = map_hot(staging.path / "nodes/state")
    slots = staging.hot("index/slots", np.uint64)
    build_index(packed, slots, max(budget, 8 << 20))
    slots.close()
    return StagedNodes(numbering, codec, packed, StateIndex(map_hot(staging.path / "index/slots"), packed))


def choose_model_codec(model: TransitionModel, numbers: NDArray[np.int64] | None = None) -> StateCodec:
    """Find out how wide state vectors are, and how many bits a component takes: by one pass over the states
    unless the model says."""
    answers = Answers(model)
    width = answers.vectors(model.space.states(_numbers(numbers, 0, 1))).shape[1]
    default = type(model).vectors is TransitionModel.vectors
    bits = 1 if default else model.component_bits
    if bits is not None:
        return StateCodec(width, bits)
    largest = 0
    count = model.space.count if numbers is None else len(numbers)
    for first in range(0, count, _STEP):
        states = model.space.states(_numbers(numbers, first, min(first + _STEP, count)))
        vectors = answers.vectors(states, width)
        if (
            vectors.dtype.kind not in "buif"
            or not (vectors >= 0).all()
            or (vectors != np.trunc(vectors)).any()
        ):
            bad = 0
            if vectors.dtype.kind in "buif":
                bad = int(np.argmax(~((vectors >= 0) & (vectors == np.trunc(vectors))).all(axis=1)))
            raise ModelError(
                f"{type(model).__name__}.vectors gave {vectors[bad].tolist()} for state "
                f"{tuple(states[bad].tolist())}, where whole numbers from 0 on were expected"
            )
        largest = max(largest, int(vectors.max()))
    return StateCodec(width, component_bits_for(largest))


def _numbers(numbers: NDArray[np.int64] | None, first: int, last: int) -> NDArray[np.int64]:
    return np.arange(first, last) if numbers is None else np.array(numbers[first:last])


def _comparable(packed: NDArray[np.uint8]) -> NDArray[Any]:
    """View (n, k) bytes as n strings, which numpy compares as memcmp does."""
    return np.ascontiguousarray(packed).view(f"S{packed.shape[1]}").reshape(-1)


def _written_in_order(
    model: TransitionModel, staging: Staging, codec: StateCodec, tick: Callable[[int], object]
) -> ProductNumbering | None:
    """Write the states component before component; None where their vectors sort otherwise."""
    answers = Answers(model)
    space = model.space
    orders = []
    for component, size in enumerate(space.sizes):
        states = np.zeros((size, len(space.sizes)), np.int64)
        states[:, component] = np.arange(size)
        orders.append(np.argsort(_comparable(codec.pack(answers.vectors(states))), kind="stable"))
    numbering = ProductNumbering(space, orders)
    if space.count > 2 and not _seems_in_order(answers, numbering, codec):
        return None
    writer = staging.hot("nodes/state", np.uint8, (codec.packed_bytes,))
    before = None
    for first in range(0, space.count, _STEP):
        nodes = np.arange(first, min(first + _STEP, space.count))
        packed = codec.pack(answers.vectors(numbering.states(nodes), codec.width))
        keys = _comparable(packed if before is None else np.concatenate((before, packed)))
        if (keys[1:] <= keys[:-1]).any():
            staging.discard("nodes/state")
            return None
        writer.append(packed)
        before = packed[-1:]
        tick(len(nodes))
    writer.close()
    return numbering


def _seems_in_order(answers: Answers, numbering: ProductNumbering, codec: StateCodec) -> bool:
    """Look at pairs of consecutive nodes all over the graph, before everything is written in vain."""
    first = np.linspace(0, numbering.num_nodes - 2, _TRIED).astype(np.int64)
    one, other = (
        _comparable(codec.pack(answers.vectors(numbering.states(nodes)))) for nodes in (first, first + 1)
    )
    return bool((one < other).all())


def _sorted(
    model: TransitionModel,
    staging: Staging,
    codec: StateCodec,
    budget: int,
    numbers: NDArray[np.int64] | None,
    tick: Callable[[int], object],
) -> ListedNumbering:
    """Sort the states by their vectors, and list the numbers of the nodes."""
    answers = Answers(model)
    count = model.space.count if numbers is None else len(numbers)
    dtype = np.dtype([("key", "u1", (codec.packed_bytes,)), ("number", "<i8")])

    def records() -> Iterator[NDArray[Any]]:
        for first in range(0, count, _STEP):
            part = np.empty(min(_STEP, count - first), dtype)
            part["number"] = _numbers(numbers, first, first + len(part))
            part["key"] = codec.pack(answers.vectors(model.space.states(part["number"]), codec.width))
            yield part

    writer = staging.hot("nodes/state", np.uint8, (codec.packed_bytes,))
    path = staging.scratch / "numbers"
    ascending, last = True, -1
    with path.open("wb") as file:
        for part in sort_by_key(records, count, dtype, staging.scratch, budget):
            keys = _comparable(part["key"])
            if (keys[1:] == keys[:-1]).any():
                at = int(np.argmax(keys[1:] == keys[:-1]))
                one, other = (tuple(s) for s in model.space.states(part["number"][at : at + 2]).tolist())
                raise ModelError(
                    f"{type(model).__name__}.vectors gives states {one} and {other} the same vector",
                    "Every state needs a vector of its own.",
                )
            ordered = np.ascontiguousarray(part["number"])
            ascending &= bool(ordered[0] > last and (ordered[1:] > ordered[:-1]).all())
            last = int(ordered[-1])
            file.write(ordered.data)
            for first in range(0, len(part), _STEP):
                writer.append(np.ascontiguousarray(part["key"][first : first + _STEP]))
            tick(len(part))
    writer.close()
    number = np.memmap(path, np.int64, mode="r")
    if ascending:
        return ListedNumbering(model.space, number)
    return _with_way_back(model, staging.scratch, number, numbers)


def _with_way_back(
    model: TransitionModel, scratch: Path, number: NDArray[np.int64], numbers: NDArray[np.int64] | None
) -> ListedNumbering:
    """Add the nodes of the numbers in ascending order."""
    count = len(number)
    if numbers is None:
        numbers = np.memmap(scratch / "sorted-numbers", np.int64, mode="w+", shape=(count,))
        for first in range(0, count, _STEP):
            numbers[first : first + _STEP] = np.arange(first, min(first + _STEP, count))
    nodes = np.memmap(scratch / "sorted-nodes", np.int64, mode="w+", shape=(count,))
    for first in range(0, count, _STEP):
        part = number[first : first + _STEP]
        nodes[np.searchsorted(numbers, part)] = np.arange(first, first + len(part))
    return ListedNumbering(model.space, number, numbers, nodes)
