"""Mass on nodes moved forward a step under two policies: where episodes are, given where they were."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.errors import UsageError
from omstore.exact import push_kernels
from omstore.exact.backup import Backup, Policy, plays
from omstore.exact.dictionary import DictionarySource
from omstore.exact.factored import FactoredSource
from omstore.exact.gains import Terms, Valuation
from omstore.exact.row_source import EdgeSource, MassSource
from omstore.read.graph import Graph

__all__ = ["Pusher"]

_CHUNK_EDGES = 1 << 17
"""Edges read at a time, about: 7 MB. Fewer take more calls, more don't stay in cache."""

_PARTS = 4
"""Parts of the graph whose sums are made apart, then added: a fixed number, so that threads have no influence."""


class Pusher:
    """Moves mass along all rows of a graph, both sides playing by policies.

    Factored rows are contracted one component after the other where all of a node's rows factor or none does, all are
    legal, and one side is an agent that moves one component; dictionary rows are gone through a block of patterns at a
    time; else edges are read. Memory: 32 bytes a node or position, and some megabytes a thread.

    Parameters
    ----------
    graph : Graph
    own_side : sequence of int
        The agents of one side, ascending; the others are the other.
    threads : int
        No influence on results.

    Attributes
    ----------
    method : str
        ``"factored"``, ``"dictionary"``, ``"edges"``, or ``"resolved edges"``: done is read of each.

    Raises
    ------
    UsageError
        If these are no agents, or all of them, or there are fewer than 1 thread.
    CorruptStoreError
        If a file is damaged where it was read.
    """

    def __init__(self, graph: Graph, own_side: Sequence[int], *, threads: int = 2) -> None:
        if threads < 1:
            raise UsageError(f"{threads} threads do no work: at least 1 is needed")
        self.graph = graph
        self.threads = threads
        self._own_side = list(own_side)
        nothing = np.empty(graph.num_nodes)
        self._sides = Backup(nothing, [], nothing, own_side=self._own_side).sides(graph)
        self._keep: NDArray[np.float64] | None = None
        self._source = self._shortest()
        self.method = "resolved edges" if self._source is None else self._source.name

    def push(
        self, mass: NDArray[np.float64], own: Policy, other: Policy
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Move mass a step; joint actions are played as `Backup` says.

        Parameters
        ----------
        mass : (N,) float64
            On each node; that on nodes without a legal joint action is gone.
        own, other : Policy
            Of the own side, and of all other agents.

        Returns
        -------
        visited, going_on : (N,) float64
            Mass that comes to each node, and that of it which came by edges that aren't done.

        Raises
        ------
        UsageError
            If a shape is wrong.
        CorruptStoreError
            If a file is damaged where it was read.
        """
        Backup(mass, [], np.empty(len(mass)), own_side=self._own_side, own=own, other=other).check(self.graph)
        mass = as_input(mass, np.float64)
        source = self._source
        if source is None:
            return self._along_resolved(mass, own, other)
        bounds = source.bounds(_PARTS)
        sums = np.zeros((len(bounds) - 1, source.num_places))

        def run(part: int) -> None:
            source.push(bounds[part], bounds[part + 1], mass, self._sides, (own, other), sums[part])

        self._share(run, len(sums))
        total = sums[0]
        for more in sums[1:]:
            total += more
        source.check_mass(total)
        visited = source.by_node(total)
        return visited, visited * self._kept(source)

    def _shortest(self) -> MassSource | None:
        """Choose the shortest way through the rows; None: done is no function of the next node."""
        terms = Terms(self.graph, rewards=False)
        if not terms.by_next_node:
            return None
        factored = FactoredSource.of(self.graph, terms)
        found = None if factored is None else factored.split(self._sides, self._own_side)
        if found is not None:
            return found[0]
        return DictionarySource.of(self.graph, terms) or EdgeSource(self.graph, terms)

    def _kept(self, source: MassSource) -> NDArray[np.float64]:
        """1 for nodes entered without done, 0 for others: what is worth 1 there is worth as much before."""
        if self._keep is None:
            ones = as_input(np.ones(self.graph.num_nodes), np.float64)
            gains = source.gains(Valuation(ones, as_input(np.empty(0), np.float64), 1.0))
            self._keep = source.by_node(gains.table)
        return self._keep

    def _along_resolved(
        self, mass: NDArray[np.float64], own: Policy, other: Policy
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Read done of every edge."""
        graph, joint = self.graph, self.graph.num_joint_actions
        edges_of_node = max(joint, graph.num_edges // max(1, graph.num_nodes))
        rows = max(1, _CHUNK_EDGES // edges_of_node) * joint
        parts = _PARTS // 2  # of two sums each
        bounds = np.linspace(0, graph.num_nodes, parts + 1).astype(np.int64).tolist()
        sums = np.zeros((parts, 2, len(mass)))

        def run(part: int) -> None:
            for chunk in graph.sweep(rows, start_node=bounds[part], stop_node=bounds[part + 1]):
                found, node = chunk.successors, chunk.first_row // joint
                count = (len(found.offsets) - 1) // joint
                nodes = slice(node, node + count)
                if not mass[nodes].any():
                    continue
                arguments: list[Any] = [
                    as_input(found.offsets, np.int64),
                    as_input(found.next_node, np.int64),
                    as_input(found.probability, np.float64),
                    as_input(found.done, np.bool_),
                    *plays(self._sides, own, other, nodes, count),
                    as_input(mass[nodes], np.float64),
                    *sums[part],
                ]
                push_kernels.push_resolved(*arguments)

        self._share(run, parts)
        total = sums[0]
        for more in sums[1:]:
            total += more
        return total[0], total[1]

    def _share(self, run: Callable[[int], None], parts: int) -> None:
        if self.threads == 1:
            for part in range(parts):
                run(part)
            return
        with ThreadPoolExecutor(self.threads) as executor:
            list(executor.map(run, range(parts)))
