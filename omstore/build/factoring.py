"""The factoring of an independent model: its kernels as they are, nothing to be found."""

from __future__ import annotations

import numpy as np

from omstore.model.kernel_rows import KernelRows
from omstore.model.numbering import ListedNumbering
from omstore.rows.factored import Component, Factoring

__all__ = ["model_factoring"]


def model_factoring(rows: KernelRows) -> Factoring:
    """Describe an independent model's rows as components that move independently."""
    coded = rows.combination is not None
    components = tuple(
        Component(
            part.mover,
            part.size,
            part.num_actions,
            part.offsets,
            part.next_state,
            part.probability,
            part.outcome_class if coded else None,
            len(part.classes) if coded else 1,
        )
        for part in rows.parts
    )
    combination = None if rows.combination is None else rows.combination.astype(np.int64)
    product = None
    if isinstance(rows.numbering, ListedNumbering):
        product = np.asarray(rows.numbering.number, np.int64)
    return Factoring(components, combination, product)
