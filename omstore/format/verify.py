"""Compare a version's files with its manifest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from omstore.errors import CorruptStoreError
from omstore.format.durable import digest_file
from omstore.format.manifest import MANIFEST_NAME, Manifest

__all__ = ["check_sizes", "find_damage", "version_files"]

_HINT = "Publish again, or `omstore rollback` to an earlier version."


def version_files(folder: Path) -> Iterator[str]:
    """Paths of all files in a version's folder but the manifest, relative, with forward slashes, sorted by
    folder.
    """
    for parent, folders, names in os.walk(folder):
        folders.sort()
        relative = Path(parent).relative_to(folder)
        for name in sorted(names):
            path = (relative / name).as_posix()
            if path != MANIFEST_NAME:
                yield path


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """Check that every file of the manifest is there with its size: cheap, one stat a file.

    Raises
    ------
    CorruptStoreError
        Naming the first file that is missing or has another size.
    """
    for path, digest in manifest.files.items():
        try:
            size = (folder / path).stat().st_size
        except (FileNotFoundError, NotADirectoryError) as error:
            raise CorruptStoreError(f"{folder / path} is missing", _HINT) from error
        if size != digest.size:
            raise CorruptStoreError(f"{folder / path} has {size} bytes instead of {digest.size}", _HINT)


def find_damage(
    folder: Path, manifest: Manifest, done: Callable[[int], object] | None = None
) -> Iterator[tuple[str, str]]:
    """Read every file and compare it with the manifest.

    Parameters
    ----------
    folder : Path
        The version's folder.
    manifest : Manifest
        Its manifest.
    done : callable, optional
        Called with the bytes of every file that was read, for progress.

    Yields
    ------
    tuple of str
        The relative path of a file, and what is wrong with it: missing, another size or digest, or not in the
        manifest.
    """
    for path, expected in sorted(manifest.files.items()):
        file = folder / path
        if not file.is_file():
            yield path, "is missing"
        elif (size := file.stat().st_size) != expected.size:
            yield path, f"has {size} bytes instead of {expected.size}"
        elif digest_file(file).sha256 != expected.sha256:
            yield path, "has other contents than were published (sha256 differs)"
        if done is not None:
            done(expected.size)
    for path in version_files(folder):
        if path not in manifest.files:
            yield path, "isn't in the manifest"
