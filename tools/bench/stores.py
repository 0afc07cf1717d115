"""The stores that several row encodings are measured on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import omstore
from omstore.build import BuildOptions, build
from omstore.model import load_model

__all__ = ["stores"]


def stores(
    exports: Sequence[Path] | None, rows: Sequence[str], agents: int, folder: Path
) -> Iterator[tuple[Path, omstore.Graph]]:
    """Open stores that exist, or build pursuit with slip 0.1 in a folder, in each of some row encodings.

    Parameters
    ----------
    exports : sequence of Path or None
        None: build.
    rows : sequence of str
        Row encodings to build.
    agents : int
    folder : Path

    Yields
    ------
    export : Path
    graph : Graph
    """
    for export in exports or [folder / each for each in rows]:
        if not exports:
            build(
                load_model("pursuit", {"agents": agents, "slip": 0.1}), export, BuildOptions(rows=export.name)
            )
        graph = omstore.open(export).graph
        assert graph is not None
        yield export, graph
