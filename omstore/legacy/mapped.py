"""What mapping a legacy pickle gives: which field plays which role."""

from __future__ import annotations

from dataclasses import dataclass

from omstore.legacy.fields import Field, Records

__all__ = ["MAP_FIELDS", "Dropped", "GraphMapping", "NodesMapping", "ReplayMapping"]

MAP_FIELDS = (
    *(
        "nodes",
        "edges",
        "node_state",
        "node_id",
        "source",
        "next_node",
        "joint_action",
        "probability",
        "reward",
    ),
    *("done", "transitions", "observation", "next_observation", "replay_joint_action", "replay_reward"),
    *("replay_done", "ring_position", "ring_size"),
)
"""What ``--map FIELD=NAME`` knows as FIELD. A ``replay_`` name goes before the one for both files."""


@dataclass(frozen=True)
class Dropped:
    """A field that isn't stored, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class NodesMapping:
    """Where the nodes' states are, and their legacy ids; ``id`` None: the position."""

    records: Records
    state: Field
    id: Field | None

    def describe(self) -> list[str]:
        """Write it for people, one role a line."""
        ids = self.id.name if self.id else "position"
        return [
            f"nodes: {self.records.name}, {self.records.num_rows:,} records",
            f"  state <- {_shown(self.state)}",
            f"  id <- {ids}",
        ]


@dataclass(frozen=True)
class GraphMapping:
    """The roles in a transition graph.

    Attributes
    ----------
    edges : Records
    nodes : NodesMapping or None
        None: the nodes are the endpoints of the edges.
    source, next_node, joint_action : Field
        Endpoints of one integer are legacy ids (of nodes by position or id), wider ones are states.
    probability, reward, done : Field or None
    kept : tuple of (str, Field)
    agents : tuple of str
        Names, where dict keys give them; else empty.
    num_agents : int or None
        None when nothing tells.
    dropped : tuple of Dropped
    """

    edges: Records
    nodes: NodesMapping | None
    source: Field
    next_node: Field
    joint_action: Field
    probability: Field | None
    reward: Field | None
    done: Field | None
    kept: tuple[tuple[str, Field], ...]
    agents: tuple[str, ...]
    num_agents: int | None
    dropped: tuple[Dropped, ...] = ()

    def describe(self) -> list[str]:
        """Write it for people, one role a line."""
        lines = self.nodes.describe() if self.nodes else ["nodes: none, taken from the edges' endpoints"]
        lines.append(
            f"edges: {self.edges.name}, {self.edges.num_rows:,} records of {self.edges.schema.record}"
        )
        for role in ("source", "next_node", "joint_action", "probability", "reward", "done"):
            lines.append(f"  {role} <- {_shown(getattr(self, role), _ABSENT.get(role, ''))}")
        lines += [f"  kept {name} <- {_shown(kept)}" for name, kept in self.kept]
        lines += [f"  dropped {drop.name}: {drop.reason}" for drop in self.dropped]
        return lines


@dataclass(frozen=True)
class ReplayMapping:
    """The roles in a replay.

    Attributes
    ----------
    records : Records
    observations, next_observations : tuple of (str, Field)
        Per agent; a single one named ``""`` when observations aren't per agent.
    focal : int
        Which of them is the state.
    joint_action : Field
    reward, done : Field or None
    kept : tuple of (str, Field)
    agents, num_agents
        As in `GraphMapping`.
    first, count : int
        A ring's records, oldest first: ``(first + i) % count``.
    """

    records: Records
    observations: tuple[tuple[str, Field], ...]
    next_observations: tuple[tuple[str, Field], ...]
    focal: int
    joint_action: Field
    reward: Field | None
    done: Field | None
    kept: tuple[tuple[str, Field], ...]
    agents: tuple[str, ...]
    num_agents: int | None
    first: int = 0
    count: int = 0
    dropped: tuple[Dropped, ...] = ()

    def describe(self) -> list[str]:
        """Write it for people, one role a line."""
        ring = f", a ring whose oldest record is number {self.first:,}" if self.first else ""
        lines = [
            f"replay: {self.records.name}, {self.count:,} transitions of {self.records.schema.record}{ring}"
        ]
        for title, fields in (
            ("observation", self.observations),
            ("next_observation", self.next_observations),
        ):
            for i, (agent, where) in enumerate(fields):
                note = " (focal: the state)" if i == self.focal else ""
                lines.append(f"  {title} {agent} <- {_shown(where)}{note}".replace("  <-", " <-"))
        for role in ("joint_action", "reward", "done"):
            lines.append(f"  {role} <- {_shown(getattr(self, role), _ABSENT.get(role, ''))}")
        lines += [f"  kept {name} <- {_shown(kept)}" for name, kept in self.kept]
        lines += [f"  dropped {drop.name}: {drop.reason}" for drop in self.dropped]
        return lines


_ABSENT = {"probability": "absent: 1", "reward": "absent: none stored", "done": "absent: false"}


def _shown(where: Field | None, absent: str = "absent") -> str:
    if where is None:
        return f"({absent})"
    return (
        f"{where.name} ({where.width} x {where.dtype})"
        if where.width > 1
        else f"{where.name} ({where.dtype})"
    )
