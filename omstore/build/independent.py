"""Rows of independent agents: the factoring is known, so nothing is looked for, sampled or chosen by size."""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.build.attributes import NodeAttributes
from omstore.build.factoring import model_factoring
from omstore.build.nodes import StagedNodes
from omstore.encode import EncodedRows, write_attributes
from omstore.encode.attribute_arrays import code_by_node
from omstore.encode.coordinates import find_coordinates
from omstore.model.rows import ProceduralRows
from omstore.progress import Progress
from omstore.publish.staging import Staging
from omstore.rows import GraphSize, RowEncoding, open_rows
from omstore.rows.dictionary_writer import write_dictionary
from omstore.rows.factored_writer import write_factored
from omstore.rows.proof import Proof, draw_rows, prove

__all__ = ["encode_independent"]

_THREADS = 2


def encode_independent(
    source: ProceduralRows,
    found: NodeAttributes,
    nodes: StagedNodes,
    staging: Staging,
    *,
    encoding: str,
    reason: str,
    budget: int,
    proof_rows: int | None,
    progress: Progress,
) -> EncodedRows:
    """Write the rows of an independent model as ``factored`` or ``dictionary``, and prove them.

    What `omstore.encode.encode_rows` writes, without its look at a sample of the rows beforehand: that would
    take as long as the rest.

    Parameters
    ----------
    source : ProceduralRows
        With kernels.
    found : NodeAttributes
    nodes : StagedNodes
    staging : Staging
    encoding, reason : str
    budget : int
        Bytes of anonymous memory.
    proof_rows : int, optional
        Random rows to compare with the model; None: all of them.
    progress : Progress
    """
    with progress.task(f"writing rows as {encoding}", None, "edges") as task:
        if encoding == "factored":
            assert source.kernels is not None  # the caller looked
            description, size = write_factored(
                source,
                model_factoring(source.kernels),
                staging,
                exceptional_nodes=found.absorbing,
                threads=_THREADS,
                budget=budget,
                tick=task.update,
            )
        else:
            coordinates = find_coordinates(nodes.packed, nodes.codec)
            positions = coordinates.positions()
            description, size = write_dictionary(
                source,
                staging,
                positions=positions,
                num_positions=None if positions is None else coordinates.num_positions,
                threads=_THREADS,
                budget=budget,
                tick=task.update,
            )
            del positions
    attributes = tuple(code_by_node(attribute) for attribute in found.attributes)
    described = write_attributes(staging, attributes)
    proof = _prove(source, open_rows(staging.path, description, size), size, proof_rows, progress)
    description |= {"num_outcomes": size.num_outcomes, "reason": reason, "proof": proof}
    levels = {attribute.name: attribute.level for attribute in attributes}
    return EncodedRows(description, described, levels, size, encoding, reason, (), proof)


def _prove(
    source: ProceduralRows, encoded: RowEncoding, size: GraphSize, proof_rows: int | None, progress: Progress
) -> dict[str, Any]:
    """Compare all rows, or random ones, with the model's."""
    if proof_rows is None or proof_rows >= size.num_rows:
        with progress.task("proving rows", size.num_edges, "edges") as task:
            return prove(source, encoded, threads=_THREADS, tick=task.update).to_dict()
    total = Proof(0, 0, 0)
    with progress.task("proving random rows", proof_rows, "rows") as task:
        for rows in draw_rows(size, proof_rows, np.random.default_rng(0)):
            total += prove(source, encoded, rows=rows, threads=_THREADS)
            task.update(len(rows))
    return total.to_dict()
