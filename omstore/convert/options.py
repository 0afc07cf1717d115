"""What can be asked of a conversion, and what it reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from omstore.encode import check_encoding
from omstore.errors import UsageError
from omstore.legacy.mapping import MAP_FIELDS
from omstore.memory import DEFAULT_BUDGET, format_bytes

__all__ = ["ConvertOptions", "ConvertReport"]


@dataclass(frozen=True)
class ConvertOptions:
    """Options of `convert`; the command line has one for each.

    Attributes
    ----------
    max_ram : int
        Bytes of anonymous memory to use; what is written doesn't depend on it.
    rows : str
        Row encoding: ``auto``, ``csr``, ``csr-compressed``, ``dictionary`` or ``factored``.
    map : mapping
        ``--map FIELD=NAME``: which legacy name plays a part (`omstore.legacy.mapping.MAP_FIELDS`).
    keep : tuple of str
        ``--keep NAME``: extra fields to store.
    focal : str or None
        Agent whose observation is the state of a transition: name or number; None: agent 0.
    actions : tuple of int or None
        Number of actions of each agent; None: the largest seen + 1.
    allow_nonfinite : bool
        Take NaN and infinities in rewards and kept fields.
    dry_run : bool
        Do everything but publish.
    """

    max_ram: int = DEFAULT_BUDGET
    rows: str = "auto"
    map: Mapping[str, str] = field(default_factory=dict)
    keep: tuple[str, ...] = ()
    focal: str | None = None
    actions: tuple[int, ...] | None = None
    allow_nonfinite: bool = False
    dry_run: bool = False

    def __post_init__(self) -> None:
        check_encoding(self.rows)
        for name in self.map:
            if name not in MAP_FIELDS:
                raise UsageError(f"--map knows no field {name!r}", f"Choose one of: {', '.join(MAP_FIELDS)}.")
        if self.max_ram < 64 << 20:
            raise UsageError(
                f"{format_bytes(self.max_ram)} is less memory than conversion can do with",
                "Give it at least 64 MiB with --max-ram.",
            )
        if self.actions is not None and (not self.actions or min(self.actions) < 1):
            raise UsageError(
                "--actions takes a number of actions, at least 1, for each agent", "Such as --actions 5,5,5."
            )

    def recorded(self) -> dict[str, Any]:
        """Return what goes into the manifest: what the bytes depend on."""
        return {
            "rows": self.rows,
            "map": dict(sorted(self.map.items())),
            "keep": list(self.keep),
            "focal": self.focal,
            "actions": None if self.actions is None else list(self.actions),
            "allow_nonfinite": self.allow_nonfinite,
        }


@dataclass
class ConvertReport:
    """What a conversion did.

    Attributes
    ----------
    version : str or None
        Name of the published version; None for a dry run.
    num_nodes, num_edges, num_joint_actions, num_legal_rows, num_transitions, off_graph : int
        Counts; `off_graph` transitions have a state that isn't in the graph.
    agents : list of str
    num_actions : list of int
    encoding, encoding_reason : str
        Row encoding, and why it was chosen.
    forecasts : list of dict
        What each row encoding was predicted to take; empty where csr was asked for.
    proof : dict
        Rows and edges of the encoding that were compared with the sorted rows, and the largest difference of
        a probability in ulp; empty where the sorted rows themselves were stored.
    attributes : dict of str to str
        Level of each attribute.
    source_bytes, store_bytes, scratch_bytes : int
        Of the pickles, the version, and the largest table spool.
    files : dict of str to int
        Bytes of the version's arrays, by their first folder.
    seconds : dict of str to float
        Wall time by stage.
    peak_anonymous : int
        Highest sampled anonymous memory of the process, bytes.
    mapping : list of str
        Which field plays which role.
    notes : list of str
        What was dropped, assumed or missing.
    dry_run : bool
    """

    version: str | None = None
    num_nodes: int = 0
    num_edges: int = 0
    num_joint_actions: int = 0
    num_legal_rows: int = 0
    num_transitions: int = 0
    off_graph: int = 0
    agents: list[str] = field(default_factory=list)
    num_actions: list[int] = field(default_factory=list)
    encoding: str = ""
    encoding_reason: str = ""
    forecasts: list[dict[str, Any]] = field(default_factory=list)
    proof: dict[str, Any] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)
    source_bytes: int = 0
    store_bytes: int = 0
    scratch_bytes: int = 0
    files: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    peak_anonymous: int = 0
    mapping: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    dry_run: bool = False

    @property
    def off_graph_share(self) -> float:
        """Share of transitions with a state that isn't in the graph, 0 to 1."""
        return self.off_graph / self.num_transitions if self.num_transitions else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        return {**asdict(self), "off_graph_share": self.off_graph_share}
