"""The compiled part of rollouts that makes the keys of environments' random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import inlined_kernel, kernel

__all__ = ["environment_keys"]


@inlined_kernel
def _folded(key: Any, word: Any) -> Any:
    """Fold a word into a key; the twin of omstore.rollout.uniforms.extend_key."""
    state = key + (np.uint64(word) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    state = (state ^ (state >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return state ^ (state >> np.uint64(33))


@kernel
def environment_keys(
    first_key: Any, root: Any, candidate: Any, first_rollout: Any, per_part: int, keys: Any
) -> None:
    """Write the keys of environments: part p is `per_part` rollouts from ``first_rollout[p]`` on."""
    for part in range(root.size):
        key = _folded(first_key[root[part]], candidate[part])
        for k in range(per_part):
            keys[part * per_part + k] = _folded(key, first_rollout[part] + k)
