"""zarr v3 groups: the folders between a version's root and its arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omstore.format.durable import FileDigest, write_file
from omstore.format.metadata import METADATA_NAME, json_bytes

__all__ = ["write_group", "write_groups"]


def write_group(folder: Path, attributes: Mapping[str, Any] | None = None) -> dict[Path, FileDigest]:
    """Write and fsync ``zarr.json`` of a group; gives its digest by path."""
    path = folder / METADATA_NAME
    document = {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes or {})}
    return {path: write_file(path, json_bytes(document))}


def write_groups(root: Path, attributes: Mapping[str, Any] | None = None) -> dict[Path, FileDigest]:
    """Make groups of `root` and of every folder in it that is neither array nor group yet, nor inside an
    array.

    Parameters
    ----------
    root : Path
        The version's folder.
    attributes : mapping, optional
        User attributes of the root group.

    Returns
    -------
    dict
        The digest of every file written, by path.
    """
    written: dict[Path, FileDigest] = {}
    if not (root / METADATA_NAME).exists():
        written |= write_group(root, attributes)
    pending = [root]
    while pending:
        for folder in sorted(entry for entry in pending.pop().iterdir() if entry.is_dir()):
            # A folder with zarr.json is an array (the store writes no other groups before this pass): its
            # chunks lie inside, and no groups.
            if not (folder / METADATA_NAME).exists():
                written |= write_group(folder)
                pending.append(folder)
    return written
