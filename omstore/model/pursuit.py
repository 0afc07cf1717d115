"""The pursuit world: pursuers and an evader on a grid with walls, moving independently, slipping."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.errors import ModelError
from omstore.model.protocol import IndependentModel, Kernel, ModelOrigin

__all__ = ["ACTIONS", "GRID", "Pursuit", "read_grid"]

GRID = ("....#..", ".#.....", ".......", ".......", "..#....", "..#....", "......#")
"""The grid unless another is given: 7x7, five walls, 44 free cells."""

ACTIONS = {"stay": (0, 0), "N": (-1, 0), "S": (1, 0), "E": (0, 1), "W": (0, -1)}
"""Action name -> (row, column) step, in the order of the action numbers 0..4."""


def read_grid(path: Path) -> tuple[str, ...]:
    """Read a grid from a text file: a line a row, ``#`` for walls; blank lines at either end don't count.

    Raises
    ------
    ModelError
        If the file can't be read as text, or isn't a grid.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").strip("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"the grid {path} can't be read: {error}") from error
    return _checked_grid([line.rstrip() for line in lines], str(path))


def _checked_grid(rows: Sequence[str], where: str) -> tuple[str, ...]:
    grid = tuple(str(row) for row in rows)
    if not grid or not grid[0] or len({len(row) for row in grid}) > 1:
        raise ModelError(
            f"{where}: the grid's rows have {', '.join(str(len(row)) for row in grid)} characters",
            "Write rows of equal length, `#` for walls and `.` for free cells.",
        )
    odd = sorted(set("".join(grid)) - set("#."))
    if odd:
        raise ModelError(
            f"{where}: the grid has {odd[0]!r} in it", "Write `#` for walls and `.` for free cells."
        )
    if not any("." in row for row in grid):
        raise ModelError(f"{where}: the grid has no free cell")
    return grid


class Pursuit(IndependentModel):
    """Pursuers chase an evader on a grid.

    Agents 0..n-2 are pursuers, agent n-1 the evader. A state is the tuple of the agents' cells, free cells
    numbered row by row. An action moves to a neighbouring cell; into a wall or off the grid it stays.
    ``stay`` never slips; a move is carried out with probability ``1 - slip`` and otherwise replaced by one
    of the other four actions, each equally likely. A state with two agents on one cell is absorbing, and an
    episode is done on entering one. On entering a state where a pursuer stands on the evader each pursuer
    gets +1 and the evader -1, else -0.01 and +0.01. State vectors are one-hot over the padded grid, an agent
    beside the other.

    Parameters
    ----------
    agents : int
        At least 2.
    slip : float
        0 to 1.
    grid : sequence of str, optional
        Rows of ``#`` (walls) and ``.``; by default `GRID`.

    Raises
    ------
    ModelError
        If a parameter makes no pursuit.
    """

    component_bits = 1

    def __init__(self, agents: int = 3, slip: float = 0.0, grid: Sequence[str] | None = None) -> None:
        if isinstance(agents, bool) or not isinstance(agents, int) or agents < 2:
            raise ModelError(
                f"a pursuit needs at least 2 agents, not {agents!r}", "Say how many with --agents 3."
            )
        if not isinstance(slip, int | float) or not 0 <= slip <= 1:
            raise ModelError(f"slip is a probability, not {slip!r}", "Such as --slip 0.1.")
        self.grid = GRID if grid is None else _checked_grid(grid, "grid")
        self.slip = float(slip)
        self.cells = np.array(
            [(r, c) for r, row in enumerate(self.grid) for c, mark in enumerate(row) if mark == "."], np.int64
        )
        self.agents = (*(f"pursuer_{i}" for i in range(agents - 1)), "evader")
        self.num_actions = (len(ACTIONS),) * agents
        self.sizes = (len(self.cells),) * agents
        parameters: dict[str, Any] = {"agents": agents, "slip": self.slip}
        if self.grid != GRID:
            parameters["grid"] = list(self.grid)
        self.origin = ModelOrigin("pursuit", parameters)

    def kernel(self, component: int) -> Kernel:
        """Return an agent's kernel; all agents' are the same."""
        return self._cell_kernel

    @cached_property
    def _cell_kernel(self) -> Kernel:
        number = {(int(r), int(c)): i for i, (r, c) in enumerate(self.cells)}
        slip = Fraction(self.slip).limit_denominator(10**9)  # so that 0.1 means a tenth, and sums are exact
        steps = list(ACTIONS.values())
        offsets, cells, probabilities = [0], [], []
        for (row, column), cell in number.items():
            targets = [number.get((row + dr, column + dc), cell) for dr, dc in steps]
            for action in range(len(steps)):
                outcome: dict[int, Fraction] = {}
                for other, target in enumerate(targets):
                    if action == 0:  # stay never slips
                        share = Fraction(int(other == 0))
                    else:
                        share = 1 - slip if other == action else slip / (len(steps) - 1)
                    if share:
                        outcome[target] = outcome.get(target, Fraction(0)) + share
                for target in sorted(outcome):
                    cells.append(target)
                    probabilities.append(float(outcome[target]))
                offsets.append(len(cells))
        return Kernel(np.array(offsets), np.array(cells), np.array(probabilities))

    def count_edges(self) -> int:
        """Return the number of edges in closed form.

        A state with distinct cells has the product over its agents of c(cell) edges, c being the outcomes of
        all actions in a cell. Summed over ordered tuples of distinct cells that is n! times the n-th
        elementary symmetric polynomial of c; absorbing states add one edge a row.
        """
        counts = np.diff(self._cell_kernel.offsets).reshape(len(self.cells), -1).sum(axis=1).tolist()
        agents = len(self.agents)
        symmetric = [1] + [0] * agents
        for count in counts:
            for degree in range(agents, 0, -1):
                symmetric[degree] += symmetric[degree - 1] * count
        absorbing = self.space.count - math.perm(len(self.cells), agents)
        return int(math.factorial(agents) * symmetric[agents] + absorbing * self.num_joint_actions)

    def absorbing(self, states: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return where two agents stand on one cell."""
        collide = np.zeros(len(states), np.bool_)
        for one in range(states.shape[1]):
            for other in range(one):
                collide |= states[:, one] == states[:, other]
        return collide

    def reward(self, next_states: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return +1 and -1 where a pursuer stands on the evader, else -0.01 and +0.01."""
        captured = (next_states[:, :-1] == next_states[:, -1:]).any(axis=1)
        reward = np.empty(next_states.shape, np.float64)
        reward[:, :-1] = np.where(captured, 1.0, -0.01)[:, None]
        reward[:, -1] = np.where(captured, -1.0, 0.01)
        return reward

    def vectors(self, states: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return one-hot vectors over the padded grid: W = rows * columns * agents."""
        columns = len(self.grid[0])
        padded = self.cells[:, 0] * columns + self.cells[:, 1]
        return self.one_hot(padded[states], (len(self.grid) * columns,) * len(self.sizes))
