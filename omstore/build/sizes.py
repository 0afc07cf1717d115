"""Bytes of a version in the making."""

from __future__ import annotations

from pathlib import Path

__all__ = ["sizes_by_folder"]


def sizes_by_folder(folder: Path) -> dict[str, int]:
    """Bytes of the files in a folder, by the first folder of their path."""
    sizes: dict[str, int] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            top = path.relative_to(folder).parts[0]
            sizes[top] = sizes.get(top, 0) + path.stat().st_size
    return sizes
