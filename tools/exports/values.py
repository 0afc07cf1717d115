"""Columns of numbers -> the Python objects that stand in legacy records."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tools.exports.spec import ExportSpec
from tools.worlds.world import Floats, Ints, World, decode_joint_actions

__all__ = ["ValueMaker", "observe"]


def observe(states: NDArray[Any], agent: int, agents: int) -> NDArray[Any]:
    """(B, W) states -> (B, W) what `agent` sees in an egocentric export: the state turned so that its part
    is first."""
    return np.roll(states, -agent * (states.shape[1] // agents), axis=1)


class ValueMaker:
    """Makes the values of one field for a chunk of records.

    With ``spec.share``, equal joint actions, rewards and states are one object; otherwise each record has
    its own.
    """

    def __init__(self, spec: ExportSpec, world: World):
        self._spec = spec
        self._world = world
        self._shared: dict[tuple[str, bytes], Any] = {}

    def scalars(self, values: NDArray[Any]) -> list[Any]:
        """Python (or numpy) scalars."""
        return list(values) if self._spec.numpy_scalars else values.tolist()

    def _each(self, kind: str, rows: NDArray[Any], make: Callable[[NDArray[Any]], Any]) -> Iterable[Any]:
        """``make(row)`` for every row, or the same object for equal rows where objects are shared."""
        if not self._spec.share:
            return map(make, rows)
        return (self._share(kind, row, make) for row in rows)

    def _share(self, kind: str, row: NDArray[Any], make: Callable[[NDArray[Any]], Any]) -> Any:
        key = (kind, row.tobytes())
        if key not in self._shared:
            self._shared[key] = make(row)
        return self._shared[key]

    def _numbers_by_agent(self, kind: str, shape: str, rows: NDArray[Any]) -> Iterable[Any]:
        agents = self._world.agents
        kind += shape  # keys of a dict are tuples beside records with lists
        if shape == "array":
            return self._each(kind, rows, np.copy)
        if self._spec.share:
            if shape == "dict":
                return self._each(kind, rows, lambda row: dict(zip(agents, self.scalars(row), strict=True)))
            sequence: type[list[Any]] | type[tuple[Any, ...]] = list if shape == "list" else tuple
            return self._each(kind, rows, lambda row: sequence(self.scalars(row)))
        columns = [self.scalars(rows[:, agent]) for agent in range(len(agents))]
        if shape == "tuple":
            return zip(*columns, strict=True)
        if shape == "list":
            return map(list, zip(*columns, strict=True))
        if len(agents) == 3:  # ten million times at full scale
            a, b, c = agents
            return ({a: x, b: y, c: z} for x, y, z in zip(*columns, strict=True))
        return (dict(zip(agents, row, strict=True)) for row in zip(*columns, strict=True))

    def joint_actions(self, shape: str, codes: Ints) -> Iterable[Any]:
        """(B,) joint actions as tuples, lists, arrays, dicts or one class number."""
        if shape == "class":
            return self.scalars(codes)
        return self._numbers_by_agent("action", shape, decode_joint_actions(codes, self._world.num_actions))

    def rewards(self, shape: str, reward: Floats) -> Iterable[Any]:
        """(B, agents) rewards; a scalar is agent 0's."""
        if shape == "scalar":
            return self.scalars(reward[:, 0])
        return self._numbers_by_agent("reward", shape, reward)

    def states(self, shape: str, vectors: NDArray[np.uint8]) -> Iterable[Any]:
        """(B, W) state vectors as tuples of int, bytes (one a component) or arrays."""
        if shape == "bytes":
            return self._each("bytes", vectors, lambda row: row.tobytes())
        if shape == "tuple":
            return self._each("tuple", vectors, lambda row: tuple(row.tolist()))
        return self._each("array", vectors.astype(self._spec.state_dtype), np.copy)

    def observations(self, vectors: NDArray[np.uint8]) -> Iterable[Any]:
        """(B, W) states -> what the agents observe, one vector or a dict of them."""
        if self._spec.observations == "vector":
            return self._observation(vectors, 0)
        agents = self._world.agents
        seen = [self._observation(vectors, agent) for agent in range(len(agents))]
        return (dict(zip(agents, views, strict=True)) for views in zip(*seen, strict=True))

    def _observation(self, vectors: NDArray[np.uint8], agent: int) -> Iterable[Any]:
        if self._spec.egocentric:
            vectors = observe(vectors, agent, len(self._world.agents))
        arrays = self.states("array", vectors)
        if not self._spec.torch:
            return arrays
        import torch  # an optional dependency, and seconds to import

        return map(torch.from_numpy, arrays)
