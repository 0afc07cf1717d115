"""The tables of a factored graph on disk: kernels and combinations, written and read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.errors import CorruptStoreError
from omstore.format.hot import map_hot
from omstore.rows.factored_tables import Component, Factoring
from omstore.rows.write import Staging

__all__ = ["block_dtype", "read_components", "write_components"]

_HINT = "Convert or build the store again."


def block_dtype(num_blocks: int) -> np.dtype[Any]:
    """Return what nodes' blocks are stored as: uint8 while it suffices (0: none), else uint32."""
    return np.dtype(np.uint8 if num_blocks < 1 << 8 else np.uint32)


def write_components(
    factoring: Factoring, num_outcomes: int, staging: Staging, prefix: str
) -> dict[str, Any]:
    """Write kernels and combination; return what `read_components` needs of the manifest."""
    components = factoring.components
    ends = np.cumsum([len(component.next_state) for component in components])
    offsets = [np.zeros(1, np.int64)]
    for component, end in zip(components, ends, strict=True):
        offsets.append(component.offsets[1:] + (end - len(component.next_state)))
    staging.write_hot(f"{prefix}/kernel_offsets", np.concatenate(offsets).astype(np.uint64))
    states = np.concatenate([component.next_state for component in components])
    staging.write_hot(f"{prefix}/kernel_next", states.astype(np.uint32))
    chances = np.concatenate([component.probability for component in components])
    staging.write_hot(f"{prefix}/kernel_probability", chances.astype(np.float64))
    codes = factoring.combination
    if codes is not None:
        classes = [c.outcome_class for c in components if c.outcome_class is not None]
        staging.write_hot(f"{prefix}/kernel_class", np.concatenate(classes).astype(np.uint32))
        table = np.where(codes < 0, num_outcomes, codes)
        staging.write_hot(f"{prefix}/combination", table.astype(np.uint32))
    return {
        "components": [
            {
                "agent": component.agent,
                "size": component.size,
                "num_actions": component.num_actions,
                "num_classes": component.num_classes,
            }
            for component in components
        ],
        "combined": codes is not None,
    }


def read_components(
    rows: Path, description: Mapping[str, Any]
) -> tuple[list[Component], NDArray[np.int64] | None]:
    """Read the kernels of a version, and split them by component."""
    offsets = map_hot(rows / "kernel_offsets", dtype=np.uint64, item_shape=()).astype(np.int64)
    entries = int(offsets[-1]) if len(offsets) else -1
    combined = bool(description.get("combined"))
    states = map_hot(rows / "kernel_next", dtype=np.uint32, item_shape=(), rows=entries)
    chances = map_hot(rows / "kernel_probability", dtype=np.float64, item_shape=(), rows=entries)
    classes = combination = None
    if combined:
        classes = map_hot(rows / "kernel_class", dtype=np.uint32, item_shape=(), rows=entries)
        codes = map_hot(rows / "combination", dtype=np.uint32, item_shape=()).astype(np.int64)
        never = int(description.get("num_outcomes", 1))
        combination = np.where(codes == never, -1, codes)
    components: list[Component] = []
    pair = 0
    try:
        for entry in description["components"]:
            agent = entry["agent"]
            size, actions = int(entry["size"]), int(entry["num_actions"])
            stop = pair + size * actions
            own = offsets[pair : stop + 1]
            if size < 1 or actions < 1 or len(own) != size * actions + 1 or (np.diff(own) < 0).any():
                raise CorruptStoreError(
                    f"{rows / 'kernel_offsets'}: damaged, or not of these components", _HINT
                )
            part = slice(int(own[0]), int(own[-1]))
            components.append(
                Component(
                    None if agent is None else int(agent),
                    size,
                    actions,
                    own - own[0],
                    states[part].astype(np.int64),
                    np.array(chances[part]),
                    None if classes is None else classes[part].astype(np.int64),
                    int(entry["num_classes"]),
                )
            )
            pair = stop
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptStoreError(
            f"{rows.parent / 'manifest.json'}: the components aren't described as they should be", _HINT
        ) from error
    if pair + 1 != len(offsets) or offsets[0] != 0:
        raise CorruptStoreError(f"{rows / 'kernel_offsets'}: damaged, or not of these components", _HINT)
    return components, combination
