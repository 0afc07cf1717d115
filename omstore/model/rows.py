"""Procedural rows: a model answers, through the interface of all row encodings; the source of every build."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.errors import CorruptStoreError, ModelError, ModelImportError, UsageError
from omstore.format.hot import map_hot
from omstore.model.kernel_rows import KernelRows
from omstore.model.loading import is_built_in, load_model
from omstore.model.model_rows import ModelRows
from omstore.model.numbering import ListedNumbering, Numbering, ProductNumbering
from omstore.model.protocol import IndependentModel, TransitionModel
from omstore.rows.encoding import DrawnEdges, Edges, GraphSize, Probabilities, RowChunk, RowEncoding
from omstore.rows.write import Staging

__all__ = ["ProceduralRows", "model_rows", "open_procedural"]


class ProceduralRows(RowEncoding):
    """A model's rows as a row encoding: nothing is stored, everything is answered when asked.

    Kernels of an `IndependentModel` on its whole product of states are multiplied in compiled code, their
    distinct probabilities coded; any other model is asked through `successors`, and then probability, reward
    and done are attributes at level ``rows``. Threads may sweep different ranges at once. Memory: buffers of
    one chunk for each sweep, and a byte a node once edges are counted.

    Parameters
    ----------
    model : TransitionModel
        Checked (`omstore.model.load_model` does).
    numbering : Numbering
        Which state a node is.
    num_edges : int, optional
        E, where it is known already: counting costs a pass over the nodes (over all rows of a model that
        isn't independent).
    first_edge : (N + 1,) integers, optional
        Number of every node's first edge; only of use to models that aren't independent.
    count_now : bool
        Whether to count edges that aren't known at once; else `size` says that a model that isn't independent
        has none, and they are counted when they are first needed.

    Attributes
    ----------
    model : TransitionModel
    numbering : Numbering
    kernels : KernelRows or None
        None where the model is asked through `successors`.
    probabilities : (K,) float64
        Of the outcome codes; empty where the probability is an attribute at level ``rows``.
    """

    name = "procedural"

    def __init__(
        self,
        model: TransitionModel,
        numbering: Numbering,
        *,
        num_edges: int | None = None,
        first_edge: NDArray[Any] | None = None,
        count_now: bool = True,
    ) -> None:
        self.model = model
        self.numbering = numbering
        self.kernels: KernelRows | None = None
        self.asked: ModelRows | None = None
        self._rows: KernelRows | ModelRows
        if isinstance(model, IndependentModel) and numbering.num_nodes == numbering.space.count:
            self._rows = self.kernels = KernelRows(model, numbering, num_edges)
        else:
            self._rows = self.asked = ModelRows(model, numbering, first_edge, num_edges, count_now=count_now)
        self.size: GraphSize = self._rows.size

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """(K,) by outcome code; empty where the probability is an attribute at level ``rows``."""
        return np.empty(0) if self.kernels is None else self.kernels.probabilities

    def outdegree(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of successors of each row; see :class:`RowEncoding`."""
        return np.diff(self._rows.bounds(np.asarray(rows, np.int64))[0])

    def gather(self, rows: NDArray[np.int64], *, edges: bool = False) -> Edges:
        """Return the edges of rows in any order; numbering edges is slow; see :class:`RowEncoding`."""
        return self._rows.gather(np.asarray(rows, np.int64), edges)

    def sample(
        self, rows: NDArray[np.int64], uniforms: NDArray[np.float64], probabilities: Probabilities
    ) -> DrawnEdges:
        """Draw one edge for each row by the model's own probabilities; edges have number -1."""
        return self._rows.sample(np.asarray(rows, np.int64), uniforms, probabilities)

    def sweep(self, start_row: int, stop_row: int, chunk_rows: int) -> Iterator[RowChunk]:
        """Go through rows in order; chunks may be views of reused buffers; see :class:`RowEncoding`."""
        return self._rows.sweep(start_row, stop_row, chunk_rows)

    def nbytes(self) -> Mapping[str, int]:
        """Return the bytes of what is held instead of rows."""
        return self._rows.nbytes()

    def write(self, staging: Staging) -> dict[str, Any]:
        """Write what a store keeps of procedural rows, and return the manifest's ``rows``.

        Raises
        ------
        UsageError
            If the model can't be loaded again.
        """
        origin = self.model.origin
        if origin is None:
            raise UsageError(
                f"procedural rows are answered by the model, but {type(self.model).__name__} was made by hand "
                "and can't be found again",
                "Build with module:factory instead, or choose rows that are stored (--rows auto).",
            )
        description: dict[str, Any] = {
            "encoding": self.name,
            "num_outcomes": self.size.num_outcomes,
            "model": origin.name,
            "parameters": dict(origin.parameters),
        }
        if isinstance(self.numbering, ProductNumbering):
            description["numbering"] = "product"
            staging.write_hot("rows/local_state", np.concatenate(self.numbering.orders).astype(np.uint32))
        else:
            assert isinstance(self.numbering, ListedNumbering)
            description["numbering"] = "listed"
            self.numbering.write(staging)
        if self.asked is not None:
            writer = staging.hot("rows/first_edge", np.uint64)
            for first in range(0, self.size.num_nodes + 1, 1 << 16):
                writer.append(np.asarray(self.asked.first_edges[first : first + (1 << 16)]).astype(np.uint64))
            writer.close()
        return description


def model_rows(model: TransitionModel) -> ProceduralRows:
    """Return a model's rows without a store: every state of its product is a node, numbered as it is counted.

    Parameters
    ----------
    model : TransitionModel
        One that isn't independent is asked for all of its rows, to count them.
    """
    numbering = ProductNumbering(model.space, [np.arange(size) for size in model.space.sizes])
    return ProceduralRows(model, numbering)


def open_procedural(
    folder: Path, description: Mapping[str, Any], size: GraphSize, *, allow_import: bool
) -> ProceduralRows:
    """Open the procedural rows of a version.

    Parameters
    ----------
    folder : Path
        The version's folder.
    description : mapping
        ``manifest.rows``.
    size : GraphSize
        Of the graph.
    allow_import : bool
        Whether a model that isn't built in may be imported.

    Raises
    ------
    ModelImportError
        If it must be imported, and may not be.
    ModelError
        If it can't be loaded.
    CorruptStoreError
        If the store isn't this model's.
    """
    name, parameters = description.get("model"), description.get("parameters")
    if not isinstance(name, str) or not isinstance(parameters, dict):
        raise CorruptStoreError(f"{folder / 'manifest.json'}: procedural rows of the model {name!r}")
    if not is_built_in(name) and not allow_import:
        raise ModelImportError(
            f"{folder}: the rows are answered by the model {name}, which must be imported, and so executed",
            "If you trust it, allow it: omstore.open(path, allow_model_import=True), --allow-model-import.",
        )
    model = load_model(name, parameters)
    numbering: Numbering
    if description.get("numbering") == "product":
        orders = map_hot(
            folder / "rows/local_state", dtype=np.uint32, item_shape=(), rows=sum(model.space.sizes)
        )
        cuts = np.cumsum(model.space.sizes)[:-1]
        try:
            numbering = ProductNumbering(model.space, np.split(orders.astype(np.int64), cuts))
        except UsageError as error:
            raise CorruptStoreError(f"{folder / 'rows/local_state'}: {error.message}") from error
    else:
        numbering = ListedNumbering.open(model.space, folder, size.num_nodes)
    if numbering.num_nodes != size.num_nodes or model.num_joint_actions != size.num_joint_actions:
        raise _other_model(folder, name)
    independent = isinstance(model, IndependentModel) and numbering.num_nodes == model.space.count
    firsts = None
    if not independent:
        firsts = map_hot(folder / "rows/first_edge", dtype=np.uint64, item_shape=(), rows=size.num_nodes + 1)
        if int(firsts[-1]) != size.num_edges:
            raise CorruptStoreError(
                f"{folder / 'rows/first_edge'} ends at {firsts[-1]}, not {size.num_edges}"
            )
    rows = ProceduralRows(model, numbering, num_edges=size.num_edges, first_edge=firsts)
    if rows.size != size:
        raise _other_model(folder, name)
    return rows


def _other_model(folder: Path, name: str) -> ModelError:
    return ModelError(
        f"{folder}: the model {name} isn't what the store was built from: its states, joint actions or "
        "probabilities are others",
        "Build the store again.",
    )
