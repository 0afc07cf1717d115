"""Row encodings: the successors of every row, behind one interface."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omstore.errors import SchemaVersionError
from omstore.rows.compressed import CsrCompressedRows
from omstore.rows.csr import CsrRows
from omstore.rows.dictionary import DictionaryRows
from omstore.rows.encoding import DrawnEdges, Edges, GraphSize, Probabilities, RowChunk, RowEncoding
from omstore.rows.factored import FactoredRows
from omstore.rows.write import CsrCompressedWriter, CsrWriter, RowWriter, row_writer

__all__ = [
    "CsrCompressedRows",
    "CsrCompressedWriter",
    "CsrRows",
    "CsrWriter",
    "DictionaryRows",
    "DrawnEdges",
    "Edges",
    "FactoredRows",
    "GraphSize",
    "Probabilities",
    "RowChunk",
    "RowEncoding",
    "RowWriter",
    "open_rows",
    "row_writer",
]


def open_rows(folder: Path, description: Mapping[str, Any], size: GraphSize) -> RowEncoding:
    """Open the rows of a version.

    Parameters
    ----------
    folder : Path
        The version's folder.
    description : mapping
        ``manifest.rows``.
    size : GraphSize
        Of the graph.

    Raises
    ------
    SchemaVersionError
        If this omstore doesn't know the encoding.
    CorruptStoreError
        Naming a file that is missing, truncated or foreign.
    """
    encoding = description.get("encoding")
    if encoding == CsrRows.name:
        return CsrRows.open(folder, description, size)
    if encoding == CsrCompressedRows.name:
        return CsrCompressedRows(folder, description, size)
    if encoding == DictionaryRows.name:
        return DictionaryRows.open(folder, description, size)
    if encoding == FactoredRows.name:
        return FactoredRows.open(folder, description, size)
    raise SchemaVersionError(
        f"{folder}: this omstore doesn't read the row encoding {encoding!r}",
        "Install the omstore that wrote it (tool_version in manifest.json) or a newer one.",
    )
