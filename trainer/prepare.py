"""Everything that training needs of an export, checked before any training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import omstore
from omstore.errors import MemoryBudgetError, StoreNotFoundError, UsageError
from omstore.memory import format_bytes
from trainer.adapter import GraphWorldModelAdapter
from trainer.buffer import OMBuffer
from trainer.config import TrainConfig
from trainer.focal_agent import choose_focal_agent
from trainer.level0 import Level0Dataset, Representation, extract_level0_dataset

__all__ = ["OMTrainingInputs", "prepare_om_training_inputs"]

_PICKLE = "wm/env_transition_graph.pkl"


@dataclass(frozen=True)
class OMTrainingInputs:
    """What training starts from.

    Attributes
    ----------
    buffer : OMBuffer
        The samples of level 0, with the node of each as `graph_state_idx`: the source of root states.
    graph : Graph
        ``dyn.graph``, for callers that know it by this name.
    dyn : GraphWorldModelAdapter
        The one adapter; whatever needs one takes it from here.
    store : Store
        What they came from.
    focal_agent : int
    off_graph : int
        Samples whose state isn't in the graph; 0 unless these were allowed. Level 0 learns from them, and they
        are filtered out of the roots.
    notes : tuple of str
        Remarks for people.
    """

    buffer: OMBuffer
    graph: omstore.Graph
    dyn: GraphWorldModelAdapter
    store: omstore.Store
    focal_agent: int
    off_graph: int = 0
    notes: tuple[str, ...] = ()


def prepare_om_training_inputs(
    export: str | Path,
    *,
    focal_agent: int | str | None = None,
    capacity: int | None = None,
    strict: bool = True,
    representation: Representation = "observation",
    legal_cache: int = TrainConfig.legal_cache,
    chunk: int = 1 << 15,
    max_ram: int | None = None,
    version: str | int | None = None,
    allow_model_import: bool = False,
    tick: Callable[[int], object] = lambda n: None,
) -> OMTrainingInputs:
    """Check an export's store and load the samples of level 0, with the node of every state.

    Nodes are those that were resolved when the store was made; states aren't hashed again (but for observations
    that differ from the states, which are looked up once to see whether they are in the graph).

    Parameters
    ----------
    export : path
        An export's folder.
    focal_agent : int or str, optional
        Number or name; None: see `choose_focal_agent`.
    capacity : int, optional
        Samples in the buffer: the newest that many. None: all.
    strict : bool
        Refuse states that aren't in the graph. Otherwise they stay in the buffer with node -1, and are filtered
        out of the roots drawn later.
    representation : {"observation", "state"}
        See `extract_level0_dataset`. Roots are the replay's states either way.
    legal_cache : int
        See `GraphWorldModelAdapter`.
    chunk : int
        Transitions read at a time.
    max_ram : int, optional
        Bytes of memory to stay under: a buffer that would take more than half is refused.
    version : str or int, optional
        Of the store; None: the live one.
    allow_model_import : bool
        See `omstore.open`.
    tick : callable
        Told numbers of transitions read.

    Returns
    -------
    OMTrainingInputs
        Memory: the buffer, ``capacity * (Wb + bytes of a team action)``. Nodes stay mapped.

    Raises
    ------
    StoreNotFoundError
        If there is no store, or it lacks the graph or the replay; says how to make it.
    UsageError
        If the samples' states have another width than the graph's, or aren't in the graph (with `strict`).
    MemoryBudgetError
        If the buffer is too large for `max_ram`.
    """
    export = Path(export)
    store = _open(export, version, allow_model_import)
    graph = store.graph
    if graph is None:
        raise StoreNotFoundError(f"{store.path} has a replay but no graph", _next_step(export))
    # opened for themselves, so that the chunks decoded last go with each
    passing = omstore.open(store.path, allow_model_import=allow_model_import)
    chosen = choose_focal_agent(passing, focal_agent, chunk=chunk)
    focal = chosen.number
    passing = omstore.open(store.path, allow_model_import=allow_model_import)
    data = extract_level0_dataset(passing, focal_agent=focal, chunk=chunk, representation=representation)
    _check_width(data, graph)
    if capacity is not None and capacity < 1:
        raise UsageError(f"a buffer's capacity is at least 1, not {capacity}")
    held = min(len(data), capacity or len(data))
    _check_memory(data, capacity or len(data), max_ram)
    dyn = GraphWorldModelAdapter(graph, legal_cache, focal_agent=focal)
    off_graph = _check_nodes(data, graph, len(data) - held, strict)
    buffer = OMBuffer(
        capacity or len(data),
        data.state_width,
        num_actions=data.num_actions,
        state_dtype=data.state_dtype,
    )
    for part in data.chunks(len(data) - held):
        buffer.add_packed(part.stored, part.action)
        tick(len(part))
    buffer.graph_state_idx = data.replay.nodes[len(data) - held :]
    notes = [chosen.note] if chosen.note else []
    if data.observed:
        notes.append(
            f"level 0 learns from what {graph.agents[focal]} observed, which differs from the states of the graph "
            "that rollouts ask it about; --representation state trains it on those"
        )
    if off_graph:
        notes.append(f"{off_graph:,} of {held:,} states aren't in the graph: no roots are drawn from them")
    return OMTrainingInputs(buffer, graph, dyn, store, focal, off_graph, tuple(notes))


def _open(export: Path, version: str | int | None, allow_model_import: bool) -> omstore.Store:
    try:
        return omstore.open(export, version=version, allow_model_import=allow_model_import)
    except StoreNotFoundError as error:
        if version is not None or not export.exists():
            raise
        raise StoreNotFoundError(error.message, _next_step(export)) from error


def _next_step(export: Path) -> str:
    if any((export / (_PICKLE + ending)).exists() for ending in ("", ".gz", ".zst", ".xz")):
        return f"Make it from {_PICKLE}: omstore convert {export}"
    return (
        f"Put {_PICKLE} and wm/D.pkl there and run `omstore convert {export}`, or build it from a model: "
        f"omstore build pursuit --agents 3 {export} --transitions 1000000"
    )


def _check_width(data: Level0Dataset, graph: omstore.Graph) -> None:
    if data.state_width == graph.state_width:
        return
    name = data.agents[data.focal_agent]
    raise UsageError(
        f"{data.store.path}: what {name} observed has {data.state_width} components, the graph's states have "
        f"{graph.state_width}",
        "Train on the replay's states with --representation state, or choose another focal agent with "
        f"--focal-agent: {', '.join(agent for agent in data.agents if agent not in data.replay.observers)}.",
    )


def _check_memory(data: Level0Dataset, capacity: int, max_ram: int | None) -> None:
    stored = -(-data.state_width // 8)
    if data.state_dtype is not None:
        stored = data.state_width * data.state_dtype.itemsize
    size = capacity * (stored + np.min_scalar_type(data.num_actions - 1).itemsize)
    if max_ram is not None and size > max_ram // 2:
        fitting = max(1, capacity * (max_ram // 2) // size)
        raise MemoryBudgetError(
            f"a buffer of {capacity:,} samples takes {format_bytes(size)}, more than half of "
            f"{format_bytes(max_ram)}",
            f"Keep fewer with --capacity {fitting}, or allow more with --max-ram {format_bytes(2 * size)}.",
        )


def _check_nodes(data: Level0Dataset, graph: omstore.Graph, start: int, strict: bool) -> int:
    """Count states of the replay that aren't in the graph; with `strict` they are an error, and so are
    observations that aren't."""
    roots = samples = 0
    first = -1
    for begin in range(start, len(data), data.chunk):
        missing = data.replay.nodes[begin : begin + data.chunk] < 0
        roots += int(np.count_nonzero(missing))
        if data.observed:  # the only vectors whose nodes weren't resolved when the store was made
            part = next(data.chunks(begin, min(begin + data.chunk, len(data))))
            missing = missing | ~_in_graph(part.state, data.store, graph)
        if first < 0 and missing.any():
            first = begin + int(np.argmax(missing))
        samples += int(np.count_nonzero(missing))
    if samples and strict:
        raise UsageError(
            f"{data.store.path}: {samples:,} of {len(data) - start:,} extracted states aren't in the graph, "
            f"the first at transition {first:,}",
            "`omstore verify` says whether the store is whole. To leave such states out of the roots instead, "
            "allow them: --no-strict (strict=False).",
        )
    return roots


def _in_graph(states: NDArray[Any], store: omstore.Store, graph: omstore.Graph) -> NDArray[np.bool_]:
    largest = (1 << store.manifest.state.component_bits) - 1
    found = ((states >= 0) & (states <= largest) & (np.trunc(states) == states)).all(axis=1)
    found[found] = graph.lookup(states[found]) >= 0
    return np.asarray(found)
