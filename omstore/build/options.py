"""What a build is asked for, and what it did."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from omstore.encode import ENCODINGS
from omstore.errors import UsageError
from omstore.memory import DEFAULT_BUDGET, format_bytes

__all__ = ["ROWS", "BuildOptions", "BuildReport"]

ROWS = ("auto", *ENCODINGS, "procedural")
"""What ``--rows`` may ask of a build."""

PROOF_LIMIT = 20_000_000_000
"""Edges up to which every one is proven: a minute's work or two."""

PROOF_ROWS = 10_000_000
"""Random rows proven of a graph with more edges."""


@dataclass(frozen=True)
class BuildOptions:
    """Options of `build`; the command line has one for each.

    Attributes
    ----------
    max_ram : int
        Bytes of anonymous memory to use; what is written doesn't depend on it.
    rows : str
        Row encoding, one of `ROWS`.
    transitions : int
        Transitions of a simulated replay; 0: none.
    seed : int
        Of the replay, and of the rows proven where not all are.
    horizon : int
        Steps after which an episode of the replay ends at the latest.
    dry_run : bool
        Predict sizes and times, write nothing.
    """

    max_ram: int = DEFAULT_BUDGET
    rows: str = "auto"
    transitions: int = 0
    seed: int = 0
    horizon: int = 100
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.rows not in ROWS:
            raise UsageError(f"there is no row encoding {self.rows!r}", f"Choose one of: {', '.join(ROWS)}.")
        if self.max_ram < 64 << 20:
            raise UsageError(
                f"{format_bytes(self.max_ram)} is less memory than a build can do with",
                "Give it at least 64 MiB with --max-ram.",
            )
        if self.transitions < 0 or self.horizon < 1 or self.seed < 0:
            raise UsageError("transitions and seed are at least 0, a horizon at least 1")

    def recorded(self) -> dict[str, Any]:
        """Return what goes into the manifest: what the bytes depend on."""
        recorded: dict[str, Any] = {"rows": self.rows}
        if self.transitions:
            recorded |= {"transitions": self.transitions, "seed": self.seed, "horizon": self.horizon}
        return recorded


@dataclass
class BuildReport:
    """What a build did, or would do.

    Attributes
    ----------
    version : str or None
        Name of the published version; None for a dry run.
    model : str
    parameters : dict
    num_nodes, num_absorbing, num_edges, num_joint_actions, num_transitions : int
    edges_error : float
        Standard error of `num_edges`, where it was predicted from a sample; else 0.
    agents : list of str
    num_actions : list of int
    encoding, encoding_reason : str
    forecasts : list of dict
        What each row encoding is predicted to take; as far as they were looked at.
    proof : dict
        Rows and edges compared with the model, and the largest difference of a probability in ulp.
    attributes : dict of str to str
        Level of each attribute.
    node_bytes, store_bytes : int
        Predicted bytes of nodes and index; bytes of the version.
    free_bytes : int
        Of the disk, before the build.
    files : dict of str to int
        Bytes of the version's arrays, by their first folder.
    seconds : dict of str to float
        Wall time by stage.
    peak_anonymous : int
        Highest sampled anonymous memory of the process, bytes.
    notes : list of str
    problem : str
        Of a dry run: why the build would be refused, and what would fit; else empty.
    dry_run : bool
    """

    version: str | None = None
    model: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    num_nodes: int = 0
    num_absorbing: int = 0
    num_edges: int = 0
    edges_error: float = 0.0
    num_joint_actions: int = 0
    num_transitions: int = 0
    agents: list[str] = field(default_factory=list)
    num_actions: list[int] = field(default_factory=list)
    encoding: str = ""
    encoding_reason: str = ""
    forecasts: list[dict[str, Any]] = field(default_factory=list)
    proof: dict[str, Any] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)
    node_bytes: int = 0
    store_bytes: int = 0
    free_bytes: int = 0
    files: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    peak_anonymous: int = 0
    notes: list[str] = field(default_factory=list)
    problem: str = ""
    dry_run: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        return asdict(self)
