"""The replay of a build: spooled transitions through conversion's own writer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from omstore.build.tables import SpooledTable
from omstore.convert.actions import ActionSpace
from omstore.convert.replay import ReplayResult, TransitionStream, write_replay
from omstore.convert.resolve import StateNodes
from omstore.format.states import StateCodec
from omstore.index import StateIndex
from omstore.legacy.mapping import ReplayMapping
from omstore.publish.staging import Staging

__all__ = ["TRANSITIONS", "transition_table", "write_transitions"]

TRANSITIONS = ("state", "joint_action", "next_state", "reward", "done")
"""Columns of the table of transitions."""


def transition_table(folder: Path, state_width: int, num_agents: int, *, where: str) -> SpooledTable:
    """Begin a table of transitions."""
    columns: list[tuple[str, Any, int | None]] = [
        ("state", np.uint8, state_width),
        ("joint_action", np.int64, None),
        ("next_state", np.uint8, state_width),
        ("reward", np.float64, num_agents),
        ("done", np.uint8, None),
    ]
    return SpooledTable(where, folder, columns)


def write_transitions(
    table: SpooledTable,
    codec: StateCodec,
    index: StateIndex | None,
    agents: tuple[str, ...],
    num_actions: tuple[int, ...],
    staging: Staging,
    tick: Callable[[int], object] = lambda n: None,
) -> ReplayResult:
    """Write ``replay/`` of spooled transitions into staging; nodes are looked up in `index`."""
    records = table.records()
    mapping = ReplayMapping(
        records=records,
        observations=(("", table.field("state")),),
        next_observations=(("", table.field("next_state")),),
        focal=0,
        joint_action=table.field("joint_action"),
        reward=table.field("reward"),
        done=table.field("done"),
        kept=(),
        agents=agents,
        num_agents=len(agents),
        count=records.num_rows,
    )
    nodes = None if index is None else StateNodes(codec, index)
    stream = TransitionStream(table.reader(), mapping, codec, nodes, ActionSpace(num_actions), table.name)
    return write_replay(stream, None, staging, tick)
