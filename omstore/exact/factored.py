"""Factored rows backed up by contracting one component's kernel at a time: joint successors are never listed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.errors import CorruptStoreError
from omstore.exact import factored_kernels
from omstore.exact.gains import Gains, Terms, Valuation
from omstore.exact.row_source import Block, RowSource
from omstore.read.graph import Graph
from omstore.rollout.policies import Sides
from omstore.rows import FactoredRows, Probabilities
from omstore.rows.factored_tables import Component
from omstore.rows.patterns import NO_PATTERN

__all__ = ["FactoredSource", "Stages"]

_LANES = 16
"""Combinations of actions are filled up to a multiple of this: compiled loops then have no rest."""

_WORK_BYTES = 256 << 20
"""More than this of a thread's buffers, and the edges are swept."""

_CHUNK_ROWS = 1 << 19
"""Rows whose returns are held at a time: 4 MiB."""

_RESPOND_NODES = 1 << 12
"""Nodes whose policies are asked for at a time."""

Block2D = NDArray[np.float64]

_HINT = "Convert or build the store again."


@dataclass(frozen=True, eq=False)
class Stages:
    """How the kernels of C components are contracted, the first component's first.

    A *combination* of a stage is one of the actions of all agents that move components up to it. *Heads* are those of
    the components but the last.

    Attributes
    ----------
    sizes, actions : (C,) int64
    tails : (C,) int64
        Product of the sizes behind a component.
    pair_start : (C,) int64
        First pair of a component.
    offsets : (pairs + 1,) int64
    nexts, chances : (outcomes,) int64, float64
    combos, combo_start : (C,) int64
        Combinations of each stage, and where they begin in the next two.
    combo_source, combo_action : (combinations,) int64
        The combination of the stage before that one is made of, and the action of this component's agent.
    joint_head, joint_action : (A,) int64
        What joint actions are made of: a head, and the action of the last component's agent.
    always : bool
        Whether all pairs have outcomes.
    whole : bool
        Whether every head goes with every action of the last component's agent.
    lanes : int
        Heads, filled up.
    work_start : (C,) int64
        Where each stage begins in a thread's buffer; the last is what is turned round for the last component.
    work : int
        Numbers in a thread's buffer.
    """

    sizes: NDArray[np.int64]
    tails: NDArray[np.int64]
    actions: NDArray[np.int64]
    pair_start: NDArray[np.int64]
    offsets: NDArray[np.int64]
    nexts: NDArray[np.int64]
    chances: NDArray[np.float64]
    combos: NDArray[np.int64]
    combo_start: NDArray[np.int64]
    combo_source: NDArray[np.int64]
    combo_action: NDArray[np.int64]
    joint_head: NDArray[np.int64]
    joint_action: NDArray[np.int64]
    always: bool
    whole: bool
    lanes: int
    work_start: NDArray[np.int64]
    work: int

    @classmethod
    def of(cls, components: Sequence[Component], num_actions: Sequence[int]) -> Stages:
        """Lay out the stages of two components or more, moved by agents with these numbers of actions."""
        sizes = np.array([part.size for part in components])
        tails = np.array([int(np.prod(sizes[k + 1 :], dtype=object)) for k in range(len(sizes))], object)
        pairs = [part.num_pairs for part in components]
        outcomes = np.cumsum([0] + [len(part.next_state) for part in components])
        offsets = [part.offsets[:-1] + at for part, at in zip(components, outcomes, strict=False)]
        seen: list[int] = []
        digits = np.zeros((1, 0), np.int64)  # of each combination: the action of every agent seen
        combos, sources, actions = [], [], []
        for part in components[:-1]:
            digits, seen, source, action = _extend(part, digits, seen)
            combos.append(len(digits))
            sources.append(source)
            actions.append(action)
        heads = len(digits)
        digits, seen, head, action = _extend(components[-1], digits, seen)
        strides = np.array([int(np.prod(num_actions[agent + 1 :], dtype=object)) for agent in seen], np.int64)
        order = np.argsort(digits @ strides) if seen else np.zeros(1, np.int64)
        lanes = -(-heads // _LANES) * _LANES
        lengths = [count * int(tail) for count, tail in zip(combos, tails, strict=False)]
        lengths.append((int(sizes[-1]) + components[-1].num_actions + 1) * lanes)
        starts = np.cumsum([0, *lengths])
        return cls(
            as_input(sizes, np.int64),
            as_input(tails, np.int64),
            as_input(np.array([part.num_actions for part in components]), np.int64),
            as_input(np.cumsum([0, *pairs[:-1]]), np.int64),
            as_input(np.concatenate([*offsets, outcomes[-1:]]), np.int64),
            as_input(np.concatenate([part.next_state for part in components]), np.int64),
            as_input(np.concatenate([part.probability for part in components]), np.float64),
            as_input(np.array([*combos, len(digits)]), np.int64),
            as_input(np.cumsum([0, *combos]), np.int64),
            as_input(np.concatenate(sources), np.int64),
            as_input(np.concatenate(actions), np.int64),
            as_input(head[order], np.int64),
            as_input(action[order], np.int64),
            all(bool((np.diff(part.offsets) > 0).all()) for part in components),
            len(digits) == heads * components[-1].num_actions,
            lanes,
            as_input(starts[:-1], np.int64),
            int(starts[-1]),
        )


def _extend(
    part: Component, digits: NDArray[np.int64], seen: Sequence[int]
) -> tuple[NDArray[np.int64], list[int], NDArray[np.int64], NDArray[np.int64]]:
    """Combine with the actions of a component's agent: combinations, agents, and what they are made of."""
    before = np.arange(len(digits))
    if part.agent is None:
        return digits, list(seen), before, np.zeros_like(before)
    if part.agent in seen:
        return digits, list(seen), before, digits[:, seen.index(part.agent)]
    action = np.repeat(np.arange(part.num_actions), len(digits))
    source = np.tile(before, part.num_actions)
    return np.column_stack((digits[source], action)), [*seen, part.agent], source, action


class FactoredSource(RowSource):
    """Contracts kernels; rows that don't factor are read as patterns, once a node where all are the same.

    Memory: the gains, and for each thread those of the next nodes of one local state of the first component, times
    its actions. Units are product numbers.
    """

    name = "factored"

    def __init__(self, graph: Graph, terms: Terms, encoding: FactoredRows, stages: Stages) -> None:
        super().__init__(graph, terms)
        self._encoding = encoding
        self._stages = stages
        size = encoding.size
        exceptions = encoding.exceptions
        nothing = as_input(np.empty(0), np.uint32)
        product, node_at = encoding.factoring.product, encoding.node_at
        self._product = nothing if product is None else as_input(product, product.dtype)
        self._node_at = nothing if node_at is None else as_input(node_at, node_at.dtype)
        if exceptions is None:
            patterns = as_input(np.empty((0, size.num_joint_actions)), np.uint32)
            none = as_input(np.empty(0), np.uint64)
            tables = (none, as_input(np.empty(0), np.int32), nothing, none, as_input(np.empty(0), np.uint8))
        else:
            patterns = exceptions.block_pattern
            tables = (
                exceptions.pattern_offsets,
                exceptions.delta,
                exceptions.pattern_list,
                exceptions.list_offsets,
                exceptions.list_code,
            )
        same = np.where((patterns == patterns[:, :1]).all(axis=1), patterns[:, 0].astype(np.int64), -1)
        same[same == NO_PATTERN] = -1
        self._exceptions = (
            encoding.block,
            patterns,
            as_input(same, np.int64),
            *tables,
            as_input(_exception_chances(graph, encoding), np.float64),
        )

    @classmethod
    def of(cls, graph: Graph, terms: Terms) -> FactoredSource | None:
        """Return the source for a graph, or None where its edges have to be looked at.

        Raises
        ------
        CorruptStoreError
            If the exceptions are damaged; they are checked here, once.
        """
        encoding = graph.encoding
        if not isinstance(encoding, FactoredRows) or not terms.by_next_node or len(encoding.components) < 2:
            return None
        exceptions = encoding.exceptions
        if exceptions is not None:
            exceptions.verify()
            known = exceptions.block_pattern[exceptions.block_pattern != NO_PATTERN]
            if len(known) and int(known.max()) >= exceptions.num_patterns:
                raise CorruptStoreError("rows/exceptions: a block names a pattern that doesn't exist", _HINT)
        probability = graph.attribute("probability")
        if probability.level not in ("graph", "outcome", "rows"):
            return None
        encoding.check_probabilities(Probabilities(probability.level, probability.values))
        if terms.marks and not _marked_are_exceptions(terms, encoding):
            return None
        stages = Stages.of(encoding.components, encoding.factoring.num_actions)
        if 8 * stages.work > _WORK_BYTES:
            return None
        return cls(graph, terms, encoding, stages)

    @property
    def num_units(self) -> int:
        """Product numbers."""
        return self._encoding.factoring.num_products

    def gains(self, valuation: Valuation) -> Gains:
        """Lay gains out by product number."""
        place = self._product if self._product.size else None
        return self.terms.gains(valuation, self.num_units, place)

    def bounds(self, parts: int) -> list[int]:
        """Divide where the first component's local state changes, if that makes parts enough."""
        step = int(self._stages.tails[0])
        if self.num_units // step < parts:
            step = int(self._stages.sizes[-1])
        cuts = np.linspace(0, self.num_units // step, parts + 1).astype(np.int64) * step
        return [int(at) for at in np.unique(cuts)]

    def visit(self, first: int, stop: int, gains: Sequence[Gains]) -> Iterator[Block]:
        """Go through product numbers; see :class:`RowSource`."""
        step = max(1, _CHUNK_ROWS // self.num_joint_actions)
        room = min(step, stop - first) * self.num_joint_actions
        rows = [np.empty(room) for _ in gains]
        scratch = [_Scratch(self._stages) for _ in gains]
        for begin in range(first, stop, step):
            end = min(begin + step, stop)
            nodes = self._nodes(begin, end)
            count = len(range(*nodes.indices(end))) if isinstance(nodes, slice) else len(nodes)
            for gain, buffers, out in zip(gains, scratch, rows, strict=True):
                self._back_up(begin, end, False, gain, buffers, out)
            yield Block(nodes, [out[: count * self.num_joint_actions] for out in rows])

    def best(
        self, first: int, stop: int, gains: Gains
    ) -> tuple[slice | NDArray[np.int64], NDArray[np.float64]]:
        """Return the best row of each of some nodes, one player choosing joint actions: no row is kept."""
        nodes = self._nodes(first, stop)
        out = np.empty(stop - first if isinstance(nodes, slice) else len(nodes))
        self._back_up(first, stop, True, gains, _Scratch(self._stages), out)
        return nodes, out

    def splits(self, sides: Sides) -> bool | None:
        """Say whether `respond` may be asked for two sides: True where the own side is the last component's agent,
        False where the other is; None where it may not."""
        stages = self._stages
        if not stages.whole or not stages.always or (self._exceptions[2] < 0).any():
            return None
        actions = np.arange(int(stages.actions[-1]))
        for joint, own in ((sides.learner_joint, True), (sides.other_joint, False)):
            if len(joint) == len(actions) > 1 and np.array_equal(stages.joint_action[joint], actions):
                heads = stages.joint_head[joint]
                if (heads == heads[0]).all():
                    return own
        return None

    def respond(
        self,
        first: int,
        stop: int,
        gains: Gains,
        own_is_last: bool,
        sides: Sides,
        policies: Callable[[slice | NDArray[np.int64], int], tuple[Block2D | None, Block2D | None]],
    ) -> Iterator[tuple[slice | NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]]:
        """Go through product numbers where `splits` allows it, giving nodes, values, and best actions.

        Parameters
        ----------
        first, stop : int
        gains : Gains
        own_is_last : bool
            What `splits` said.
        sides : Sides
        policies : callable
            Gives the own and the other side's probabilities at some nodes; None: this side plays the best.
        """
        scratch = _Scratch(self._stages)
        others = sides.other_joint if own_is_last else sides.learner_joint
        head_of = as_input(self._stages.joint_head[others], np.int64)
        nobody = as_input(np.empty((0, 0)), np.float64)
        for begin in range(first, stop, _RESPOND_NODES):
            end = min(begin + _RESPOND_NODES, stop)
            nodes = self._nodes(begin, end)
            count = end - begin if isinstance(nodes, slice) else len(nodes)
            own, other = (nobody if block is None else block for block in policies(nodes, count))
            out, chosen = np.empty(count), np.empty(count, np.int64)
            last_plays, heads_play = (own, other) if own_is_last else (other, own)
            exceptions = (self._exceptions[0], *self._exceptions[2:])
            stages = self._stages
            arguments: list[Any] = [
                begin,
                end,
                last_plays,
                heads_play,
                head_of,
                *self._contracted(),
                self._product,
                self._node_at,
                self.graph.num_nodes,
                *exceptions,
                *_gain_arrays(gains),
                scratch.work,
                stages.work_start,
                stages.lanes,
                scratch.staged,
                scratch.local,
                scratch.head_legal,
                out,
                chosen,
            ]
            status, node = factored_kernels.respond_products(*arguments)
            _raise(status, node)
            yield nodes, out, chosen

    @property
    def finds_best(self) -> bool:
        """Whether `best` may be asked."""
        return self._stages.whole

    def _nodes(self, first: int, stop: int) -> slice | NDArray[np.int64]:
        if not self._node_at.size:
            return slice(first, stop)
        nodes = self._node_at[first:stop].astype(np.int64)
        return nodes[nodes < self.graph.num_nodes]

    def _back_up(
        self,
        first: int,
        stop: int,
        best_only: bool,
        gains: Gains,
        scratch: _Scratch,
        out: NDArray[np.float64],
    ) -> None:
        stages = self._stages
        arguments: list[Any] = [
            first,
            stop,
            best_only,
            *self._contracted(),
            stages.joint_head,
            stages.joint_action,
            stages.always,
            self._product,
            self._node_at,
            self.graph.num_nodes,
            *self._exceptions,
            *_gain_arrays(gains),
            scratch.work,
            stages.work_start,
            stages.lanes,
            scratch.staged,
            scratch.local,
            scratch.head_legal,
            out,
        ]
        status, node = factored_kernels.back_up_products(*arguments)
        _raise(status, node)

    def _contracted(self) -> tuple[NDArray[Any], ...]:
        """What the kernels need to know of components and combinations."""
        stages = self._stages
        return (
            stages.sizes,
            stages.tails,
            stages.actions,
            stages.pair_start,
            stages.offsets,
            stages.nexts,
            stages.chances,
            stages.combos,
            stages.combo_start,
            stages.combo_source,
            stages.combo_action,
        )


def _gain_arrays(gains: Gains) -> tuple[NDArray[Any], ...]:
    return gains.table, gains.plain, gains.base, gains.marked


def _raise(status: int, node: int) -> None:
    """Raise the error for what a kernel found wrong with a node."""
    if status == factored_kernels.OK:
        return
    reason = {
        factored_kernels.BAD_NODE: "a next node doesn't exist",
        factored_kernels.BAD_CODE: "an outcome code has no probability",
        factored_kernels.BAD_BLOCK: "its block of patterns doesn't exist",
    }[status]
    raise CorruptStoreError(f"rows: node {node} is damaged: {reason}", _HINT)


class _Scratch:
    """A thread's buffers."""

    def __init__(self, stages: Stages) -> None:
        self.work = np.zeros(stages.work)
        self.staged = np.full(len(stages.sizes), -1, np.int64)
        self.local = np.empty(len(stages.sizes), np.int64)
        self.head_legal = np.empty(stages.lanes, np.uint8)


def _marked_are_exceptions(terms: Terms, encoding: FactoredRows) -> bool:
    """Whether all rows of nodes with a reward of their own are patterns."""
    marked = terms.marked_nodes()
    if not marked.any():
        return True
    if encoding.exceptions is None:
        return False
    blocks = np.asarray(encoding.block)[marked].astype(np.int64)
    if int(blocks.max()) > encoding.exceptions.num_blocks:
        raise CorruptStoreError("rows/exceptions/block names a block that doesn't exist", _HINT)
    whole = np.concatenate(([False], (encoding.exceptions.block_pattern != NO_PATTERN).all(axis=1)))
    return bool(whole[blocks].all())


def _exception_chances(graph: Graph, encoding: FactoredRows) -> NDArray[np.float64]:
    """What the exceptions' codes stand for."""
    if encoding.exception_probability is not None:
        return np.asarray(encoding.exception_probability)
    return np.asarray(graph.attribute("probability").values)
