"""The data of level 0 in memory: a ring of packed states and team actions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, DTypeLike, NDArray
from torch import Tensor

from omstore.errors import UsageError

__all__ = ["OMBatch", "OMBuffer"]

_ACTION_DTYPES = (np.uint8, np.uint16, np.uint32)


class OMBatch(NamedTuple):
    """Samples of an `OMBuffer`.

    Attributes
    ----------
    state : (n, W) float32
    action : (n,) int64
        Team actions.
    """

    state: Tensor
    action: Tensor


class OMBuffer:
    """A ring of fixed capacity: the newest samples, each a state and a team action.

    Sample 0 is the oldest one held. States take one bit a component where all are 0 or 1, actions the smallest
    unsigned type: a million samples of 147 bits take 20 MB. They become floats a batch at a time.

    Parameters
    ----------
    capacity : int
        Samples held at most; at least 1.
    state_width : int
        Components of a state, W; at least 1.
    num_actions : int
        Team actions; actions are 0..num_actions-1.
    state_dtype : dtype_like, optional
        What a component takes: None for a bit, or uint8, uint16, uint32 or float32.

    Raises
    ------
    UsageError
        If a number makes no sense.
    """

    def __init__(
        self, capacity: int, state_width: int, *, num_actions: int, state_dtype: DTypeLike | None = None
    ) -> None:
        if capacity < 1:
            raise UsageError(f"a buffer's capacity is at least 1, not {capacity}")
        if state_width < 1:
            raise UsageError(f"a state has at least one component, not {state_width}")
        if not 1 <= num_actions <= 1 << 32:
            raise UsageError(f"there is at least 1 team action, and at most 2^32: not {num_actions}")
        self.capacity = int(capacity)
        self.state_width = int(state_width)
        self.num_actions = int(num_actions)
        self._bits = state_dtype is None
        dtype = np.dtype(np.uint8 if state_dtype is None else state_dtype)
        if dtype not in (np.uint8, np.uint16, np.uint32, np.float32):
            raise UsageError(f"a buffer's states are bits, uint8, uint16, uint32 or float32, not {dtype}")
        stored = (self.state_width + 7) // 8 if self._bits else self.state_width
        # empty: pages that are never written take no memory
        self._states: NDArray[Any] = np.empty((self.capacity, stored), dtype)
        smallest = next(kind for kind in _ACTION_DTYPES if num_actions - 1 <= np.iinfo(kind).max)
        self._actions: NDArray[Any] = np.empty(self.capacity, smallest)
        self._oldest = 0
        self._length = 0
        self._graph_state_idx: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"<OMBuffer of {len(self):,} samples, at most {self.capacity:,}, {self.nbytes:,} bytes>"

    @property
    def nbytes(self) -> int:
        """Bytes of states and actions at full capacity."""
        return self._states.nbytes + self._actions.nbytes

    @property
    def graph_state_idx(self) -> NDArray[np.int64] | None:
        """(len(buffer),) int64 node of each sample's state, -1 where it isn't in the graph; None: not known.

        Attach it after loading has finished: any write of at least one sample clears it. It is kept as given,
        not copied (a store's mapped ``replay.nodes`` costs no memory), and handed out read-only.
        """
        return self._graph_state_idx

    @graph_state_idx.setter
    def graph_state_idx(self, nodes: ArrayLike | None) -> None:
        if nodes is None:
            self._graph_state_idx = None
            return
        given = np.asarray(nodes)
        if given.shape != (len(self),) or given.dtype.kind not in "iu":
            raise UsageError(
                f"graph_state_idx must be one integer for each of the {len(self):,} samples, "
                f"not {given.dtype} of shape {given.shape}",
                "Attach it after loading has finished.",
            )
        view = given.astype(np.int64, copy=False).view(np.ndarray)
        view.flags.writeable = False
        self._graph_state_idx = view

    def add(self, states: ArrayLike | Tensor, actions: ArrayLike | Tensor) -> None:
        """Write a batch, oldest first, over the oldest samples held.

        Of a batch larger than the capacity the newest `capacity` samples stay. A batch of at least one clears
        `graph_state_idx`; an empty one changes nothing.

        Parameters
        ----------
        states : (B, W)
            Zeros and ones where states are kept as bits.
        actions : (B,) integers

        Raises
        ------
        UsageError
            For another shape, an action out of range or a component that doesn't fit.
        """
        values = states.numpy(force=True) if isinstance(states, Tensor) else np.asarray(states)
        if values.ndim != 2 or values.shape[1] != self.state_width:
            raise UsageError(f"states must be (batch, {self.state_width}), not {values.shape}")
        if not self._bits:
            self.add_packed(self._fitting(values), actions)
            return
        if values.dtype != np.bool_ and not ((values == 0) | (values == 1)).all():
            raise UsageError(
                "a state has a component that is neither 0 nor 1, in a buffer of bits",
                "Make the buffer with a state_dtype.",
            )
        self.add_packed(np.packbits(values.astype(np.bool_), axis=1), actions)

    def add_packed(self, stored: NDArray[Any], actions: ArrayLike | Tensor) -> None:
        """Write a batch as `add` does, of states as they are kept: packed by `numpy.packbits`, or of its dtype.

        Parameters
        ----------
        stored : (B, Wb) uint8 where components are bits, else (B, W) of the buffer's dtype
        actions : (B,) integers
        """
        chosen = actions.numpy(force=True) if isinstance(actions, Tensor) else np.asarray(actions)
        if (
            stored.ndim != 2
            or stored.shape[1:] != self._states.shape[1:]
            or stored.dtype != self._states.dtype
        ):
            raise UsageError(
                f"packed states must be {self._states.dtype} of (batch, {self._states.shape[1]}), "
                f"not {stored.dtype} of {stored.shape}"
            )
        if chosen.shape != (len(stored),) or (chosen.size and chosen.dtype.kind not in "iu"):
            raise UsageError(
                f"{len(stored)} states were given with actions of {chosen.dtype}, shape {chosen.shape}"
            )
        if not len(stored):
            return
        outside = (chosen < 0) | (chosen >= self.num_actions)
        if outside.any():
            position = int(np.argmax(outside))
            raise UsageError(
                f"team action {chosen[position]} at position {position} of the batch "
                f"isn't within 0 to {self.num_actions - 1}"
            )
        self._graph_state_idx = None
        if len(stored) >= self.capacity:
            self._oldest, self._length = 0, 0
            stored, chosen = stored[-self.capacity :], chosen[-self.capacity :]
        first = (self._oldest + self._length) % self.capacity
        until_end = min(len(stored), self.capacity - first)
        self._states[first : first + until_end] = stored[:until_end]
        self._actions[first : first + until_end] = chosen[:until_end]
        wrapped = len(stored) - until_end
        self._states[:wrapped] = stored[until_end:]
        self._actions[:wrapped] = chosen[until_end:]
        overwritten = max(0, self._length + len(stored) - self.capacity)
        self._oldest = (self._oldest + overwritten) % self.capacity
        self._length += len(stored) - overwritten

    def sample(self, indices: ArrayLike | Tensor) -> OMBatch:
        """Return the samples at given indices, in their order.

        Parameters
        ----------
        indices : (n,) integers
            0 is the oldest sample.

        Returns
        -------
        OMBatch
            New tensors, ``4 n W + 8 n`` bytes.

        Raises
        ------
        UsageError
            Naming the first index that is out of range.
        """
        slots = self._slots(indices)
        action = torch.empty(len(slots), dtype=torch.int64)
        action.numpy()[:] = self._actions[slots]
        return OMBatch(self._floats(slots), action)

    def states(self, indices: ArrayLike | Tensor) -> Tensor:
        """Return the states at given indices, (n,) -> (n, W) float32."""
        return self._floats(self._slots(indices))

    def actions(self, indices: ArrayLike | Tensor) -> NDArray[np.int64]:
        """Return the team actions at given indices, (n,) -> (n,) int64."""
        return self._actions[self._slots(indices)].astype(np.int64)

    def _floats(self, slots: NDArray[np.int64]) -> Tensor:
        stored = self._states[slots]
        # Memory of torch's own is aligned; the last bit of a matrix product may depend on that.
        state = torch.empty((len(slots), self.state_width), dtype=torch.float32)
        state.numpy()[:] = np.unpackbits(stored, axis=1, count=self.state_width) if self._bits else stored
        return state

    def _slots(self, indices: ArrayLike | Tensor) -> NDArray[np.int64]:
        given = indices.numpy(force=True) if isinstance(indices, Tensor) else np.asarray(indices)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise UsageError(f"indices are (n,) integers, not {given.dtype} of shape {given.shape}")
        wide = given.astype(np.int64)
        outside = (wide < 0) | (wide >= self._length)
        if outside.any():
            position = int(np.argmax(outside))
            raise UsageError(
                f"sample {wide[position]} at position {position} of the batch isn't within 0 to {self._length - 1:,}"
            )
        wide += self._oldest
        wide[wide >= self.capacity] -= self.capacity
        return wide

    def _fitting(self, values: NDArray[Any]) -> NDArray[Any]:
        stored = values.astype(self._states.dtype)
        # a float64 observation loses its last bits, which is meant; an integer that wraps isn't
        if stored.dtype.kind == "u" and not (stored == values).all():
            raise UsageError(f"a state has a component that doesn't fit {stored.dtype}")
        return stored
