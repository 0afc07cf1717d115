"""Exploring a model out of core: breadth first from its initial states, until no new state is met.

Sorted runs of product numbers in files are all there is: the visited ones, those met from the frontier.
Whatever doesn't fit the budget is merged range by range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.errors import ModelError
from omstore.model.checks import Answers
from omstore.model.protocol import TransitionModel

__all__ = ["Explored", "explore"]

_ROWS = 1 << 12
_STEP = 1 << 16


@dataclass(frozen=True)
class Explored:
    """The states met.

    Attributes
    ----------
    numbers : (N,) int64
        Their product numbers, ascending; mapped from scratch.
    num_edges : int
        Of all their rows.
    depth : int
        Steps to the state that is farthest from the initial ones.
    """

    numbers: NDArray[np.int64]
    num_edges: int
    depth: int


def explore(
    model: TransitionModel,
    scratch: Path,
    budget: int,
    tick: Callable[[int], object] = lambda n: None,
) -> Explored:
    """Find all states that can be reached from the model's initial states.

    Parameters
    ----------
    model : TransitionModel
        With initial states.
    scratch : Path
        Folder for files: 8 bytes a state, three times over at most.
    budget : int
        Bytes of anonymous memory.
    tick : callable
        Told the number of states whose rows were asked for.

    Raises
    ------
    ModelError
        If the initial states aren't states, or an answer isn't right.
    """
    return _Exploration(model, scratch, max(budget, 1 << 20), tick).run()


class _Exploration:
    def __init__(
        self, model: TransitionModel, scratch: Path, budget: int, tick: Callable[[int], object]
    ) -> None:
        self.model = model
        self.answers = Answers(model)
        self.scratch = scratch / "exploring"
        self.scratch.mkdir(parents=True)
        self.budget = budget
        self.tick = tick
        self.num_edges = 0
        self._files = 0
        self._buffered = budget // 32  # numbers met before they are sorted: 8 bytes, and the sort's copy

    def run(self) -> Explored:
        frontier = self._initial()
        visited = [frontier]
        depth = 0
        while True:
            following = self._fresh(self._met(frontier), visited)
            if not len(following):
                break
            depth += 1
            visited.append(following)
            # Runs of growing length, so that a deep world's aren't merged anew at every step.
            while len(visited) > 2 and 2 * len(visited[-2]) >= len(visited[-3]):
                merged = self._merge(visited[-3:-1], [])
                _remove(visited[-2], visited[-3])
                visited[-3:-1] = [merged]
            frontier = following
        numbers = visited[0] if len(visited) == 1 else self._merge(visited, [])
        return Explored(numbers, self.num_edges, depth)

    def _initial(self) -> NDArray[np.int64]:
        given = np.asarray(self.model.initial_states())
        name = type(self.model).__name__
        if given.ndim != 2 or given.shape[1] != len(self.model.sizes) or given.dtype.kind not in "iu":
            raise ModelError(
                f"{name}.initial_states gave {given.dtype} {given.shape}, not integers (B, {len(self.model.sizes)})"
            )
        if not len(given):
            raise ModelError(f"{name}.initial_states gave no state to explore from")
        states = given.astype(np.int64)
        outside = self.model.space.first_outside(states)
        if outside is not None:
            raise ModelError(
                f"{name}: component {outside[1]} of initial state {tuple(states[outside[0]].tolist())} isn't within "
                f"0 to {self.model.sizes[outside[1]] - 1}"
            )
        return self._write(iter([np.unique(self.model.space.numbers(states))]))

    def _met(self, frontier: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Ask for all rows of the frontier; return sorted runs of the numbers they lead to."""
        runs: list[NDArray[np.int64]] = []
        parts: list[NDArray[np.int64]] = []
        held = 0
        num_joint_actions = self.model.num_joint_actions
        step = max(1, _ROWS // num_joint_actions)
        joint_actions = np.arange(num_joint_actions)
        for first in range(0, len(frontier), step):
            numbers = np.array(frontier[first : first + step])
            states = self.model.space.states(numbers)
            absorbing = self.answers.absorbing(states)
            self.num_edges += int(absorbing.sum()) * num_joint_actions
            asked = np.repeat(~absorbing[:, None], num_joint_actions, axis=1)
            legal = self.answers.legal(states)
            if legal is not None:
                asked &= legal
            rows = np.flatnonzero(asked)
            for begin in range(0, len(rows), _ROWS):
                part = rows[begin : begin + _ROWS]
                found = self.answers.successors(
                    states[part // num_joint_actions], joint_actions[part % num_joint_actions]
                )
                self.num_edges += len(found.next_states)
                parts.append(np.unique(self.model.space.numbers(found.next_states)))
                held += len(parts[-1])
                if held > self._buffered:
                    runs.append(self._write(iter([np.unique(np.concatenate(parts))])))
                    parts, held = [], 0
            self.tick(len(numbers))
        if parts:
            merged = np.unique(np.concatenate(parts))
            runs.append(self._write(iter([merged])) if runs else merged)
        return runs

    def _fresh(self, met: list[NDArray[np.int64]], visited: list[NDArray[np.int64]]) -> NDArray[np.int64]:
        fresh = self._merge(met, visited)
        _remove(*met)
        return fresh

    def _merge(self, runs: list[NDArray[np.int64]], without: list[NDArray[np.int64]]) -> NDArray[np.int64]:
        """Merge sorted runs into one without repetitions, and without what is in others."""
        return self._write(self._merged(runs, without))

    def _merged(
        self, runs: list[NDArray[np.int64]], without: list[NDArray[np.int64]]
    ) -> Iterator[NDArray[np.int64]]:
        everything = [run for run in (*runs, *without) if len(run)]
        at = [0] * len(everything)
        most = max(1, self.budget // 64 // max(1, len(everything)))  # of each run at a time
        while any(start < len(run) for start, run in zip(at, everything, strict=True)):
            # Up to the least of the values that the runs' next pieces end with, every run is in memory.
            limit = min(
                int(run[min(start + most, len(run)) - 1])
                for start, run in zip(at, everything, strict=True)
                if start < len(run)
            )
            pieces = []
            for i, (start, run) in enumerate(zip(at, everything, strict=True)):
                stop = start + int(np.searchsorted(run[start : start + most], limit, side="right"))
                pieces.append(np.asarray(run[start:stop]))
                at[i] = stop
            wanted = sum(1 for run in runs if len(run))
            values = np.unique(np.concatenate(pieces[:wanted])) if wanted else np.empty(0, np.int64)
            for piece in pieces[wanted:]:
                if len(piece) and len(values):
                    known = piece[np.minimum(np.searchsorted(piece, values), len(piece) - 1)]
                    values = values[known != values]
            yield values

    def _write(self, parts: Iterator[NDArray[np.int64]]) -> NDArray[np.int64]:
        self._files += 1
        path = self.scratch / f"run-{self._files}"
        with path.open("wb") as file:
            for part in parts:
                file.write(np.ascontiguousarray(part, np.int64).data)
        if not path.stat().st_size:
            return np.empty(0, np.int64)
        return np.memmap(path, np.int64, mode="r")


def _remove(*runs: Any) -> None:
    """Delete the files of runs that aren't needed any more; a mapping in use stays whole."""
    for run in runs:
        if isinstance(run, np.memmap) and run.filename is not None:
            Path(run.filename).unlink(missing_ok=True)
