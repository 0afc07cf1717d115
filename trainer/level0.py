"""The data of level 0: what the focal agent saw, and what the team did."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import omstore
from omstore.errors import StoreNotFoundError, UsageError
from trainer.focal_agent import choose_focal_agent
from trainer.joint_actions import JointActions, find_agent

__all__ = ["Level0Chunk", "Level0Dataset", "Representation", "extract_level0_dataset"]

Representation = Literal["observation", "state"]
"""What a model sees: what the focal agent observed, or the state of the replay."""


@dataclass(frozen=True)
class Level0Chunk:
    """Consecutive samples.

    Attributes
    ----------
    first : int
        Transition of the first sample.
    stored : (n, Wb) uint8, or (n, W)
        States as an `OMBuffer` keeps them: packed where components are bits.
    action : (n,) int64
        Team actions.
    node : (n,) int64
        Of the replay's states; -1 where one isn't in the graph.
    width : int
        W.
    bits : bool
        Whether `stored` is packed bits.
    """

    first: int
    stored: NDArray[Any]
    action: NDArray[np.int64]
    node: NDArray[np.int64]
    width: int
    bits: bool

    def __len__(self) -> int:
        return len(self.action)

    @property
    def state(self) -> NDArray[Any]:
        """(n, W) components, unpacked."""
        return np.unpackbits(self.stored, axis=1, count=self.width) if self.bits else self.stored


class Level0Dataset:
    """The samples of level 0, read from the store as one goes through them, as often as wanted.

    Made by `extract_level0_dataset`. Iterating gives `Level0Chunk`s and holds one of them, and one decoded
    chunk of the replay.

    Attributes
    ----------
    actions : JointActions
        Of the focal agent and the team.
    focal_agent : int
    num_actions : int
        Team actions.
    state_width : int
        W of the states.
    state_dtype : dtype or None
        Of their components; None for bits. What an `OMBuffer` for them takes.
    observed : bool
        Whether the states are observations of the focal agent's own, which differ from the replay's states.
    """

    def __init__(
        self, store: omstore.Store, focal_agent: int, chunk: int, representation: Representation
    ) -> None:
        replay = store.replay
        if replay is None or not len(replay):
            raise StoreNotFoundError(
                f"{store.path} has no replay to learn level 0 from",
                "Put D.pkl into wm/ and run `omstore convert EXPORT`, or give `omstore build` some --transitions.",
            )
        if chunk < 1:
            raise UsageError(f"a chunk has at least one transition, not {chunk}")
        if representation not in ("observation", "state"):
            raise UsageError(f"{representation!r} is none of: observation, state")
        self.store = store
        self.replay = replay
        self.chunk = chunk
        self.agents = store.manifest.agents
        self.actions = JointActions(store.manifest.num_actions, focal_agent)
        self.focal_agent = focal_agent
        self.num_actions = self.actions.num_team
        self.observed = representation == "observation" and self.agents[focal_agent] in replay.observers
        codec = store.manifest.state
        self.state_width = int(codec.width)
        self.state_dtype: np.dtype[Any] | None = None if codec.component_bits == 1 else codec.dtype
        if self.observed:
            self._describe_observations()

    def __len__(self) -> int:
        return len(self.replay)

    def __iter__(self) -> Iterator[Level0Chunk]:
        return self.chunks()

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[Level0Chunk]:
        """Go through transitions start..stop in order.

        Memory: a chunk, ``chunk * (bytes of a state + 24)`` bytes.
        """
        stop = len(self) if stop is None else stop
        if not 0 <= start <= stop <= len(self):
            raise UsageError(f"transitions {start} to {stop} aren't within 0 to {len(self):,}")
        for first in range(start, stop, self.chunk):
            part = slice(first, min(first + self.chunk, stop))
            yield Level0Chunk(
                first,
                self._stored(part),
                self.actions.split(self.replay.joint_actions[part])[1],
                np.array(self.replay.nodes[part]),
                self.state_width,
                self.state_dtype is None,
            )

    def _stored(self, part: slice) -> NDArray[Any]:
        if self.observed:
            seen = self.replay.observations(self.agents[self.focal_agent], part)
            flat = seen.reshape(len(seen), -1)
            if self.state_dtype is None:
                return np.packbits(flat, axis=1)
            return flat.astype(self.state_dtype, copy=False)
        return self.replay.packed_states(part) if self.state_dtype is None else self.replay.states(part)

    def _describe_observations(self) -> None:
        """Find the width and type of the observations: bits, if every one is made of zeros and ones."""
        name = self.agents[self.focal_agent]
        sample = self.replay.observations(name, slice(0, 1))
        self.state_width = int(sample.reshape(1, -1).shape[1])
        if sample.dtype not in (np.bool_, np.uint8, np.uint16, np.uint32):
            self.state_dtype = np.dtype(np.float32)  # what a model takes
            return
        if sample.dtype == np.uint8:
            parts = range(0, len(self), self.chunk)
            larger = any(
                (self.replay.observations(name, slice(first, first + self.chunk)) > 1).any()
                for first in parts
            )
            self.state_dtype = sample.dtype if larger else None
            return
        self.state_dtype = None if sample.dtype == np.bool_ else sample.dtype


def extract_level0_dataset(
    store: omstore.Store,
    *,
    focal_agent: int | str | None = None,
    chunk: int = 1 << 15,
    representation: Representation = "observation",
) -> Level0Dataset:
    """Turn a store's transitions into samples of a state and the team action that was taken in it.

    The state is the focal agent's representation of it: what this agent observed, where the replay has
    observations of its own that differ from the state (see `Replay.observers`), else the replay's state. The
    team action is the joint action without the focal agent's, one class. Nothing is read before one goes through
    the samples (but for observations, whether they are bits).

    Parameters
    ----------
    store : Store
        With a replay.
    focal_agent : int or str, optional
        Number or name; None: see `choose_focal_agent`.
    chunk : int
        Transitions at a time.
    representation : {"observation", "state"}
        With ``"state"`` the replay's state whatever the focal agent observed.

    Returns
    -------
    Level0Dataset

    Raises
    ------
    StoreNotFoundError
        If the store has no replay.
    UsageError
        If there is no such agent, or only one.
    """
    if focal_agent is None:
        focal = choose_focal_agent(store, chunk=chunk).number
    else:
        focal = find_agent(store.manifest.agents, focal_agent)
    return Level0Dataset(store, focal, chunk, representation)
