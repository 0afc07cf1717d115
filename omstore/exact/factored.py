"""Factored rows backed up by contracting one component's kernel at a time: joint successors are never listed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.errors import CorruptStoreError
from omstore.exact import exception_kernels, factored_kernels, push_kernels, respond_kernels
from omstore.exact.backup import Policy, policy_rows
from omstore.exact.exceptions import marked_are_exceptions, patterns_of
from omstore.exact.factored_kernels import Buffers
from omstore.exact.gains import Gains, Terms, Valuation
from omstore.exact.orders import check_places, moved_last
from omstore.exact.row_source import Block, MassSource
from omstore.exact.stages import Stages
from omstore.read.graph import Graph
from omstore.rollout.policies import Sides
from omstore.rows import FactoredRows, Probabilities
from omstore.rows.patterns import NO_PATTERN

__all__ = ["FactoredSource"]

_WORK_BYTES = 256 << 20
"""More than this of a thread's buffers, and the edges are swept."""

_CHUNK_ROWS = 1 << 19
"""Rows whose returns are held at a time: 4 MiB."""

_RESPOND_NODES = 1 << 12
"""Nodes whose policies are asked for at a time."""

Policies = Callable[
    [slice | NDArray[np.int64], int], tuple[NDArray[np.float64] | None, NDArray[np.float64] | None]
]
"""Gives the own and the other side's probabilities at some nodes, of which there are so many, or one row for all of
them; None: this side plays the best."""

_NOBODY_CHOOSES = np.empty(0, np.int64)

_HINT = "Convert or build the store again."


class FactoredSource(MassSource):
    """Contracts kernels; rows that don't factor are read as patterns, once a node where all are the same.

    Memory: the gains, and for each thread those of the next nodes of one local state of the first component, times
    its actions. Units are product numbers.
    """

    name = "factored"

    def __init__(
        self,
        graph: Graph,
        terms: Terms,
        encoding: FactoredRows,
        stages: Stages,
        places: tuple[NDArray[Any], NDArray[Any]],
    ) -> None:
        super().__init__(graph, terms)
        self._encoding = encoding
        self._stages = stages
        self._product, self._node_at = places
        self._turned: dict[int, FactoredSource] = {}
        self._patterns = patterns_of(graph, encoding)
        self._partly = bool((self._patterns.block_same < 0).any())

    @classmethod
    def of(cls, graph: Graph, terms: Terms) -> FactoredSource | None:
        """Return the source for a graph, or None where its edges have to be looked at.

        Raises
        ------
        CorruptStoreError
            If product numbers or the exceptions are damaged; they are checked here, once.
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
        if terms.marks and not marked_are_exceptions(terms, encoding):
            return None
        stages = Stages.of(encoding.components, encoding.factoring.num_actions)
        if 8 * stages.work > _WORK_BYTES:
            return None
        product, node_at = encoding.factoring.product, encoding.node_at
        if product is None or node_at is None:
            nothing = as_input(np.empty(0), np.uint32)
            return cls(graph, terms, encoding, stages, (nothing, nothing))
        wrong = check_places(product, node_at)
        if wrong >= 0:
            raise CorruptStoreError(
                f"rows/product: node {wrong} isn't what rows/node_at leads back to", _HINT
            )
        return cls(graph, terms, encoding, stages, (as_input(product, product.dtype), node_at))

    def turned(self, agent: int) -> FactoredSource | None:
        """Return this source with the component that an agent moves as the last, or None if that isn't one component.

        Memory: 8 bytes a node and product number, kept.
        """
        parts = self._encoding.components
        moved = [number for number, part in enumerate(parts) if part.agent == agent]
        if len(moved) != 1:
            return None
        if agent not in self._turned:
            encoding, (which,) = self._encoding, moved
            order = [part for part in parts if part.agent != agent] + [parts[which]]
            self._turned[agent] = FactoredSource(
                self.graph,
                Terms(self.graph, rewards=self.terms.rewards, ends=self.terms.ends),
                encoding,
                Stages.of(order, encoding.factoring.num_actions),
                moved_last(
                    [part.size for part in parts],
                    which,
                    self.graph.num_nodes,
                    encoding.factoring.product,
                    encoding.node_at,
                ),
            )
        return self._turned[agent]

    @property
    def num_units(self) -> int:
        """Product numbers."""
        return self._encoding.factoring.num_products

    def gains(self, valuation: Valuation) -> Gains:
        """Lay gains out by product number."""
        place = self._product if self._product.size else None
        return self.terms.gains(valuation, self.num_units, place, nowhere=np.inf)

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
        scratch = [self._stages.buffers() for _ in gains]
        for begin in range(first, stop, step):
            end = min(begin + step, stop)
            nodes, count = self._nodes(begin, end)
            for gain, buffers, out in zip(gains, scratch, rows, strict=True):
                found = out[: count * self.num_joint_actions]
                stages = self._stages
                arguments: list[Any] = [begin, end, stages.joint_head, stages.joint_action]
                arguments += [*self._contracted(gain, buffers), found]
                _raise(*factored_kernels.back_up_products(*arguments))
                self._except_rows(begin, end, gain, found)
                self._check(nodes, found.reshape(-1, self.num_joint_actions))
            yield Block(nodes, [out[: count * self.num_joint_actions] for out in rows])

    def best(
        self, first: int, stop: int, gains: Gains
    ) -> tuple[slice | NDArray[np.int64], NDArray[np.float64]]:
        """Return the best row of each of some nodes, one player choosing joint actions: no row is kept."""
        nodes, count = self._nodes(first, stop)
        out = np.empty(count)
        arguments: list[Any] = [first, stop, *self._contracted(gains, self._stages.buffers()), out]
        _raise(*factored_kernels.best_products(*arguments))
        self._except_nodes(first, stop, gains, out, _NOBODY_CHOOSES)
        self._check(nodes, out)
        return nodes, out

    def splits(self, sides: Sides) -> bool | None:
        """Say whether `respond` may be asked for two sides: True where the own side is the last component's agent,
        False where the other is; None where it may not."""
        stages = self._stages
        if not stages.whole or not stages.always or self._partly:
            return None
        actions = np.arange(int(stages.actions[-1]))
        for joint, own in ((sides.learner_joint, True), (sides.other_joint, False)):
            if len(joint) == len(actions) > 1 and np.array_equal(stages.joint_action[joint], actions):
                heads = stages.joint_head[joint]
                if (heads == heads[0]).all():
                    return own
        return None

    def split(self, sides: Sides, agents: Sequence[int]) -> tuple[FactoredSource, bool] | None:
        """Return a source that may be asked to `respond` for two sides, one of which may be a single agent, and what
        its `splits` says; or None."""
        own_is_last = self.splits(sides)
        if own_is_last is not None:
            return self, own_is_last
        if self._partly or not self._stages.always:  # in any order of components
            return None
        everybody = range(len(self.graph.num_actions))
        for side in (list(agents), [agent for agent in everybody if agent not in agents]):
            turned = self.turned(side[0]) if len(side) == 1 else None
            own_is_last = None if turned is None else turned.splits(sides)
            if turned is not None and own_is_last is not None:
                return turned, own_is_last
        return None

    def respond(
        self,
        first: int,
        stop: int,
        gains: Gains,
        own_is_last: bool,
        sides: Sides,
        policies: Policies,
    ) -> Iterator[tuple[slice | NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]]:
        """Go through product numbers where `splits` allows it, giving nodes, values, and best actions.

        Parameters
        ----------
        first, stop : int
        gains : Gains
        own_is_last : bool
            What `splits` said.
        sides : Sides
        policies : Policies
        """
        contracted = self._contracted(gains, self._stages.buffers())
        others = sides.other_joint if own_is_last else sides.learner_joint
        head_of = as_input(self._stages.joint_head[others], np.int64)
        reached = self._stages.reach_start, self._stages.reach, self._stages.slot
        for begin in range(first, stop, _RESPOND_NODES):
            end = min(begin + _RESPOND_NODES, stop)
            nodes, count = self._nodes(begin, end)
            own, other = (_flat(block) for block in policies(nodes, count))
            out, chosen = np.empty(count), np.empty(count, np.int64)
            plays = (*own, *other) if own_is_last else (*other, *own)
            arguments: list[Any] = [begin, end, *plays, head_of, *reached, *contracted, out, chosen]
            _raise(*respond_kernels.respond_products(*arguments))
            self._except_nodes(begin, end, gains, out, chosen)
            self._check(nodes, out)
            yield nodes, out, chosen

    def push(
        self,
        first: int,
        stop: int,
        mass: NDArray[np.float64],
        sides: Sides,
        policies: tuple[Policy, Policy],
        out: NDArray[np.float64],
    ) -> None:
        """Move mass on to product numbers where `splits` allows it; see :class:`MassSource`."""
        own_is_last = self.splits(sides)
        buffers = self._stages.buffers()
        buffers.local[:] = -1
        others = sides.other_joint if own_is_last else sides.learner_joint
        head_of = as_input(self._stages.joint_head[others], np.int64)
        for begin in range(first, stop, _RESPOND_NODES):
            end = min(begin + _RESPOND_NODES, stop)
            nodes, count = self._nodes(begin, end)
            own, other = (
                _flat(policy_rows(policy, nodes, count, len(joint)))
                for policy, joint in zip(policies, (sides.learner_joint, sides.other_joint), strict=True)
            )
            plays = (*own, *other) if own_is_last else (*other, *own)
            patterns = self._patterns
            where = self._node_at, self.graph.num_nodes, patterns.block, patterns.block_same
            reached = self._stages.reach_start, self._stages.reach, self._stages.slot
            arguments: list[Any] = [begin, end, *plays, head_of, *reached, *self._stages.plan, *where]
            arguments += [mass, *buffers, end == stop, out]
            _raise(*push_kernels.push_products(*arguments))
            if patterns.block.size:
                place = self._product, self._node_at
                found = exception_kernels.push_nodes(
                    begin, end, *place, self.graph.num_nodes, patterns, mass, out
                )
                _raise(*found)

    @property
    def num_places(self) -> int:
        """Product numbers."""
        return self.num_units

    def by_node(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return values of product numbers as those of nodes; see :class:`MassSource`."""
        return values[self._product] if self._product.size else values

    def check_mass(self, mass: NDArray[np.float64]) -> None:
        """Check that mass is where nodes are; see :class:`MassSource`."""
        if self._node_at.size and (mass[self._node_at >= self.graph.num_nodes] > 0).any():
            raise CorruptStoreError(
                "rows: a row that factors leads to a state that isn't in the graph", _HINT
            )

    @property
    def finds_best(self) -> bool:
        """Whether `best` may be asked."""
        return self._stages.whole and not self._partly

    def _nodes(self, first: int, stop: int) -> tuple[slice | NDArray[np.int64], int]:
        """Return the nodes with some product numbers, and how many these are."""
        if not self._node_at.size:
            return slice(first, stop), stop - first
        found = self._node_at[first:stop]
        nodes = found[found < self.graph.num_nodes].astype(np.int64)
        return nodes, len(nodes)

    def _contracted(self, gains: Gains, buffers: Buffers) -> tuple[Any, ...]:
        """What kernels need to know of rows that factor."""
        patterns = self._patterns
        where = self._node_at, self.graph.num_nodes, patterns.block, patterns.block_same
        return (*self._stages.plan, *where, gains.table, *buffers)

    def _check(self, nodes: slice | NDArray[np.int64], found: NDArray[np.float64]) -> None:
        """Check that no row has led to a product number without a node, where more is to be had than anywhere."""
        if isinstance(nodes, slice) or not len(found):
            return
        wrong = np.isposinf(found) if found.ndim == 2 else ~(found < np.inf)
        if wrong.any():
            node = int(nodes[np.argmax(wrong.reshape(len(found), -1).any(axis=1))])
            _raise(exception_kernels.BAD_NODE, node)

    def _except_rows(self, first: int, stop: int, gains: Gains, out: NDArray[np.float64]) -> None:
        """Write rows that don't factor over those that do."""
        if self._patterns.block.size:
            arguments: list[Any] = [*self._excepted(first, stop, gains), out]
            _raise(*exception_kernels.back_up_rows(*arguments))

    def _except_nodes(
        self, first: int, stop: int, gains: Gains, out: NDArray[np.float64], chosen: NDArray[np.int64]
    ) -> None:
        """Write the values of nodes whose rows don't factor."""
        if self._patterns.block.size:
            arguments: list[Any] = [*self._excepted(first, stop, gains), out, chosen]
            _raise(*exception_kernels.back_up_nodes(*arguments))

    def _excepted(self, first: int, stop: int, gains: Gains) -> tuple[Any, ...]:
        """What kernels need to know of rows that don't factor."""
        where = first, stop, self._product, self._node_at, self.graph.num_nodes, self._patterns
        return (*where, gains.table, gains.plain, gains.base, gains.marked)


def _flat(block: NDArray[np.float64] | None) -> tuple[NDArray[np.float64], int]:
    """Return probabilities of nodes in one row, and how far it is from a node to the next: 0, if there is one for all."""
    if block is None:
        return as_input(np.empty(0), np.float64), 0
    return as_input(block.reshape(-1), np.float64), block.shape[1] if len(block) > 1 else 0


def _raise(status: int, node: int) -> None:
    """Raise the error for what a kernel found wrong with a node."""
    if status == exception_kernels.OK:
        return
    reason = {
        exception_kernels.BAD_NODE: "a next node doesn't exist",
        exception_kernels.BAD_CODE: "an outcome code has no probability",
        exception_kernels.BAD_BLOCK: "its block of patterns doesn't exist",
    }[status]
    raise CorruptStoreError(f"rows: node {node} is damaged: {reason}", _HINT)
