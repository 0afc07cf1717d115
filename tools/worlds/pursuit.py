"""The exact pursuit world: a 7x7 grid with five walls, pursuers and one evader, five actions each.

Agents 0..n-2 are pursuers, agent n-1 the evader. A state is the tuple of the agents' cells, and node
numbers run through all of them in product order, agent 0 most significant. An action moves to a
neighbouring cell; into a wall or off the grid it stays. ``stay`` never slips; a move is carried out with
probability 1 - slip and otherwise replaced by one of the other four actions. A state with two agents on one
cell is absorbing.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tools.worlds.world import Floats, Ints, Successors, decode_joint_actions

__all__ = ["ACTIONS", "GRID", "WALLS", "Pursuit"]

GRID = 7
WALLS = frozenset({(0, 4), (1, 1), (4, 2), (5, 2), (6, 6)})
ACTIONS = {"stay": (0, 0), "N": (-1, 0), "S": (1, 0), "E": (0, 1), "W": (0, -1)}
"""Action name -> (row, column) step, in the order of the action numbers 0..4."""


class Pursuit:
    """The pursuit world with any number of agents.

    Parameters
    ----------
    agents : int
        At least 2; the last is the evader.
    slip : float
        Probability that a move is replaced by one of the other four actions.
    blocking : bool
        If true, a pursuer stays where it is when its target is held by another pursuer: the new cell of one
        with a lower number, the old cell of one with a higher number. Agents then aren't independent, so
        kernels don't factor.
    padded : bool
        State vectors are one-hot over the padded 7x7 grid (W = 49n); otherwise over the 44 free cells (W =
        44n).

    Notes
    -----
    Nothing is stored but the kernel of one agent (a few kilobytes): four agents' 3,748,096 states cost
    nothing.
    """

    def __init__(self, agents: int = 3, slip: float = 0.0, *, blocking: bool = False, padded: bool = True):
        if agents < 2:
            raise ValueError(f"a pursuit needs at least 2 agents, not {agents}")
        if not 0 <= slip <= 1:
            raise ValueError(f"slip is a probability, not {slip}")
        self.num_agents = agents
        self.slip = slip
        self.blocking = blocking
        self.padded = padded
        self.cells = np.array([(r, c) for r in range(GRID) for c in range(GRID) if (r, c) not in WALLS])
        self.num_cells = len(self.cells)
        self.kernel_offsets, self.kernel_cells, self.kernel_probabilities = self._kernel()

    @property
    def agents(self) -> tuple[str, ...]:
        """``pursuer_0``, ..., ``evader``."""
        return (*(f"pursuer_{i}" for i in range(self.num_agents - 1)), "evader")

    @property
    def num_actions(self) -> tuple[int, ...]:
        """Five each."""
        return (len(ACTIONS),) * self.num_agents

    @property
    def num_nodes(self) -> int:
        """44^n."""
        return int(self.num_cells**self.num_agents)

    @property
    def num_joint_actions(self) -> int:
        """5^n."""
        return int(len(ACTIONS) ** self.num_agents)

    @property
    def width(self) -> int:
        """Bits of a state vector."""
        return self.num_agents * (GRID * GRID if self.padded else self.num_cells)

    @property
    def num_places(self) -> int:
        """Number of cells."""
        return self.num_cells

    @property
    def num_absorbing(self) -> int:
        """States with two agents on one cell: all, less those with distinct cells."""
        return self.num_nodes - math.perm(self.num_cells, self.num_agents)

    @property
    def num_edges(self) -> int:
        """Number of edges in closed form (of independent agents; `blocking` merges some).

        A state with distinct cells has prod_i c(cell_i) edges, c(cell) being the outcomes of all actions in
        a cell. Summed over ordered tuples of distinct cells that is n! times the n-th elementary symmetric
        polynomial of c; absorbing states add one edge a row.
        """
        if self.blocking:
            raise ValueError("the number of edges has no closed form in a blocking world")
        counts = np.diff(self.kernel_offsets).reshape(self.num_cells, len(ACTIONS)).sum(axis=1).tolist()
        symmetric = [1] + [0] * self.num_agents
        for count in counts:
            for degree in range(self.num_agents, 0, -1):
                symmetric[degree] += symmetric[degree - 1] * count
        moving = math.factorial(self.num_agents) * symmetric[self.num_agents]
        return int(moving + self.num_absorbing * self.num_joint_actions)

    def _kernel(self) -> tuple[Ints, Ints, Floats]:
        """Outcomes of one agent: pair (cell, action) number cell * 5 + action owns a slice, ascending in
        the next cell."""
        number = {(int(r), int(c)): i for i, (r, c) in enumerate(self.cells)}
        slip = Fraction(self.slip).limit_denominator(10**9)  # so that 0.1 means a tenth, and sums are exact
        steps = list(ACTIONS.values())
        offsets, cells, probabilities = [0], [], []
        for (row, column), cell in number.items():
            targets = [number.get((row + dr, column + dc), cell) for dr, dc in steps]
            for action in range(len(steps)):
                outcome: dict[int, Fraction] = {}
                for other, target in enumerate(targets):
                    if action == 0:
                        share = Fraction(int(other == 0))
                    else:
                        share = 1 - slip if other == action else slip / (len(steps) - 1)
                    if share:
                        outcome[target] = outcome.get(target, Fraction(0)) + share
                for target in sorted(outcome):
                    cells.append(target)
                    probabilities.append(float(outcome[target]))
                offsets.append(len(cells))
        return np.array(offsets, np.int64), np.array(cells, np.int64), np.array(probabilities, np.float64)

    @cached_property
    def _vector_position(self) -> Ints:
        """(44,) where a cell's bit stands in an agent's part of the vector."""
        if self.padded:
            return np.asarray(self.cells[:, 0] * GRID + self.cells[:, 1], np.int64)
        return np.arange(self.num_cells, dtype=np.int64)

    def cells_of(self, nodes: Ints) -> Ints:
        """(B,) nodes -> (B, n) cell numbers."""
        return decode_joint_actions(nodes, (self.num_cells,) * self.num_agents)

    def nodes_of(self, cells: Ints) -> Ints:
        """(B, n) cell numbers -> (B,) nodes."""
        nodes = np.zeros(cells.shape[0], np.int64)
        for agent in range(self.num_agents):
            nodes = nodes * self.num_cells + cells[:, agent]
        return nodes

    def places(self, nodes: Ints) -> Ints:
        """(B,) nodes -> (B, n): each agent's cell."""
        return self.cells_of(nodes)

    def vectors(self, nodes: Ints) -> NDArray[np.uint8]:
        """(B,) nodes -> (B, W) one-hot state vectors of zeros and ones; B * W bytes."""
        nodes = np.asarray(nodes, np.int64)
        part = self.width // self.num_agents
        vectors = np.zeros((nodes.size, self.width), np.uint8)
        positions = self._vector_position[self.cells_of(nodes)] + np.arange(self.num_agents) * part
        vectors[np.arange(nodes.size)[:, None], positions] = 1
        return vectors

    def absorbing(self, nodes: Ints) -> NDArray[np.bool_]:
        """(B,) nodes -> (B,): whether two agents stand on one cell."""
        return self._collide(self.cells_of(nodes))

    @staticmethod
    def _collide(cells: Ints) -> NDArray[np.bool_]:
        ordered = np.sort(cells, axis=1)
        return np.asarray((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))

    def legal(self, nodes: Ints) -> NDArray[np.bool_]:
        """(B,) nodes -> (B, A): every joint action is legal everywhere."""
        return np.ones((len(nodes), self.num_joint_actions), np.bool_)

    def successors(self, nodes: Ints, joint_actions: Ints) -> Successors:
        """All successors of B rows, ascending in the next node within a row.

        Memory: about ``(8 n + 64)`` bytes an edge while it runs, so ask for a range of nodes at a time.
        """
        nodes = np.asarray(nodes, np.int64)
        cells = self.cells_of(nodes)
        actions = decode_joint_actions(joint_actions, self.num_actions)
        absorbing = self._collide(cells)
        pairs = cells * len(ACTIONS) + actions
        outcomes = np.diff(self.kernel_offsets)[pairs]
        outcomes[absorbing] = 1
        outdegree = outcomes.prod(axis=1)
        offsets = np.concatenate(([0], np.cumsum(outdegree)))
        row = np.repeat(np.arange(nodes.size), outdegree)
        rank = (
            np.arange(offsets[-1]) - offsets[row]
        )  # within the row; the last agent's outcome changes fastest
        frozen = absorbing[row]
        next_cells = np.empty((row.size, self.num_agents), np.int64)
        positions = np.empty((row.size, self.num_agents), np.int64)
        for agent in range(self.num_agents - 1, -1, -1):
            rank, digit = np.divmod(rank, outcomes[row, agent])
            positions[:, agent] = self.kernel_offsets[pairs[row, agent]] + digit
            next_cells[:, agent] = self.kernel_cells[positions[:, agent]]
        next_cells[frozen] = cells[row[frozen]]
        probability = self.kernel_probabilities[positions[:, 0]]
        for agent in range(
            1, self.num_agents
        ):  # products in agent order, so that they round alike everywhere
            probability = probability * self.kernel_probabilities[positions[:, agent]]
        probability[frozen] = 1.0
        if self.blocking:
            row, next_cells, probability = self._block(row, cells, next_cells, probability, frozen)
            offsets = np.concatenate(([0], np.cumsum(np.bincount(row, minlength=nodes.size))))
            frozen = absorbing[row]
        return Successors(
            offsets.astype(np.int64),
            self.nodes_of(next_cells),
            probability,
            self._reward(next_cells, frozen),
            self._collide(next_cells),
        )

    def _reward(self, next_cells: Ints, frozen: NDArray[np.bool_]) -> Floats:
        """(E, n): +1 to pursuers and -1 to the evader on a capture, else -0.01 and +0.01; 0 out of an
        absorbing state."""
        captured = (next_cells[:, :-1] == next_cells[:, -1:]).any(axis=1)
        reward = np.empty(next_cells.shape, np.float64)
        reward[:, :-1] = np.where(captured, 1.0, -0.01)[:, None]
        reward[:, -1] = np.where(captured, -1.0, 0.01)
        reward[frozen] = 0.0
        return reward

    def _block(
        self, row: Ints, cells: Ints, next_cells: Ints, probability: Floats, frozen: NDArray[np.bool_]
    ) -> tuple[Ints, Ints, Floats]:
        """Let pursuers stop before a held cell, then merge outcomes that became the same state."""
        moved = next_cells.copy()
        old = cells[row]
        for agent in range(self.num_agents - 1):
            held = np.zeros(row.size, np.bool_)
            for other in range(self.num_agents - 1):
                if other != agent:
                    held |= moved[:, agent] == (moved if other < agent else old)[:, other]
            stays = held & ~frozen
            moved[stays, agent] = old[stays, agent]
        key = row * self.num_nodes + self.nodes_of(moved)
        unique, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        merged = np.bincount(inverse, weights=probability, minlength=unique.size)
        return row[first], moved[first], merged.astype(np.float64)
