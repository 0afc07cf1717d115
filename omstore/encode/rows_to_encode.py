"""What `encode_rows` is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.encode.forecast import Forecast
from omstore.format.states import StateCodec
from omstore.publish.scratch import ScratchArrays
from omstore.read.attributes import Attribute
from omstore.rows import GraphSize, RowEncoding
from omstore.rows.factored import Factoring

__all__ = ["EncodedRows", "RowsToEncode"]


@dataclass(frozen=True)
class RowsToEncode:
    """A graph's rows, and what its edges carry.

    Attributes
    ----------
    source : RowEncoding
        Swept several times, by several threads.
    attributes : sequence of Attribute
        Of the edges, probability included. Those at level ``outcome`` have a value for each of the source's
        codes, and are sorted as one table.
    packed : (N, Wb) uint8
        The sorted packed states.
    codec : StateCodec
    num_actions : sequence of int
        Of each agent.
    factoring : Factoring, optional
        Where it is known, as for a model of independent agents; by default one is looked for.
    exceptional_nodes : (m,) int64, optional
        With `factoring`: the nodes whose rows don't factor, where they are known too.
    hoist : bool
        Whether to look for attributes of outcomes that are functions of nodes.
    staged : ScratchArrays, optional
        Where the source itself lies as csr, under ``rows/``: moved into the version where csr is chosen.
    """

    source: RowEncoding
    attributes: Sequence[Attribute]
    packed: NDArray[np.uint8]
    codec: StateCodec
    num_actions: Sequence[int]
    factoring: Factoring | None = None
    exceptional_nodes: NDArray[np.int64] | None = None
    hoist: bool = True
    staged: ScratchArrays | None = None


@dataclass
class EncodedRows:
    """What `encode_rows` wrote, or would write.

    Attributes
    ----------
    rows : dict
        ``manifest.rows``: encoding, reason, proof; empty for a dry run.
    attributes : dict
        ``manifest.attributes``; empty for a dry run.
    levels : dict of str to str
        The level of each attribute.
    size : GraphSize
    encoding, reason : str
    forecasts : tuple of Forecast
    proof : dict
        Rows and edges compared with the source, and the largest difference of a probability in ulp; empty
        where the source itself was taken.
    """

    rows: dict[str, Any]
    attributes: dict[str, dict[str, Any]]
    levels: dict[str, str]
    size: GraphSize
    encoding: str
    reason: str
    forecasts: tuple[Forecast, ...]
    proof: dict[str, Any] = field(default_factory=dict)
