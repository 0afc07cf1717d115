"""A store's folder: its versions, ``CURRENT``, and what dead writers left."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from pathlib import Path

from omstore.errors import CorruptStoreError, PublishError, UsageError
from omstore.format.durable import disk_errors, fsync_path, write_file

__all__ = [
    "CURRENT_NAME",
    "RENAMED_NAME",
    "STAGING_PREFIX",
    "clear_leftovers",
    "discard_staging",
    "leftovers",
    "new_staging",
    "parse_version",
    "read_current",
    "remove_version",
    "replace_current",
    "unpublished_version",
    "version_name",
    "version_number",
    "version_numbers",
]

CURRENT_NAME = "CURRENT"
STAGING_PREFIX = ".staging-"
RENAMED_NAME = "renamed"
"""File in a staging folder: the name under which its version was put beside the published ones."""

_VERSION = re.compile(r"v(\d{6,18})")


def version_name(number: int) -> str:
    """Name of version `number`: ``v000001``."""
    return f"v{number:06d}"


def version_number(name: str) -> int:
    """Number of the version `name`."""
    return int(name.removeprefix("v"))


def parse_version(version: str | int) -> str:
    """Read a version as people write it (``v000001``, ``v1``, ``1`` or 1), and give its name.

    Raises
    ------
    UsageError
        If it is none.
    """
    match = re.fullmatch(r"v?(\d{1,18})", str(version))
    if match is None or int(match[1]) < 1:
        raise UsageError(f"{version!r} isn't a version", "Versions are named v000001, v000002, ...")
    return version_name(int(match[1]))


def version_numbers(store: Path) -> list[int]:
    """Numbers of the version folders in a store, ascending."""
    try:
        entries = list(os.scandir(store))
    except (FileNotFoundError, NotADirectoryError):
        return []
    matches = (_VERSION.fullmatch(entry.name) for entry in entries if entry.is_dir())
    return sorted(int(match[1]) for match in matches if match and match[0] == version_name(int(match[1])))


def read_current(store: Path) -> str | None:
    """Name of the live version, or None where nothing was published.

    Raises
    ------
    CorruptStoreError
        If ``CURRENT`` is no version's name, or the version it names is missing.
    """
    path = store / CURRENT_NAME
    hint = "`omstore rollback --to VERSION` sets it to a version that is there."
    missing = ""
    while True:
        try:
            content = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        name = content[:64].decode("ascii", "replace").removesuffix("\n")
        if _VERSION.fullmatch(name) is None or len(content) > 64:
            raise CorruptStoreError(f"{path} doesn't name a version but holds {name!r}", hint)
        if (store / name).is_dir():
            return name
        # A reader that slept while others published twice finds the version deleted, and another one named.
        if name == missing:
            raise CorruptStoreError(f"{path} names {name}, which is missing", hint)
        missing = name


def replace_current(store: Path, name: str, scratch: Path) -> None:
    """Make `name` the live version: written in `scratch` (same disk), fsynced, renamed over ``CURRENT``."""
    temporary = scratch / f"{CURRENT_NAME}-{secrets.token_hex(4)}"
    write_file(temporary, f"{name}\n".encode())
    with disk_errors(store / CURRENT_NAME):
        temporary.replace(store / CURRENT_NAME)
    try:
        fsync_path(store)
    except (OSError, PublishError) as error:
        raise PublishError(
            f"{name} is live, but might not be after a power cut: {store} can't be flushed ({error})"
        ) from error


def new_staging(store: Path) -> Path:
    """Make an empty staging folder in a store."""
    path = store / f"{STAGING_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
    with disk_errors(path):
        path.mkdir()
    return path


def remove_version(store: Path, name: str) -> None:
    """Delete a version's folder; to others it disappears at once.

    Renamed to a staging folder first (which takes no room on a full disk), so that nobody opens it half
    deleted, and the next writer finishes the deleting if this one is killed.
    """
    grave = store / f"{STAGING_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
    with disk_errors(store / name):
        (store / name).rename(grave)
    shutil.rmtree(grave, ignore_errors=True)


def leftovers(store: Path) -> list[Path]:
    """Staging folders in a store. Only the lock's holder knows that they are dead."""
    return sorted(path for path in store.glob(f"{STAGING_PREFIX}*") if path.is_dir())


def unpublished_version(store: Path, staging: Path) -> str | None:
    """Name of the version that the writer of a staging folder renamed into place without publishing it, or
    None.
    """
    try:
        name = (staging / RENAMED_NAME).read_text("ascii", "replace").strip()
    except FileNotFoundError:
        return None
    if _VERSION.fullmatch(name) is None or not (store / name).is_dir():
        return None
    try:
        return name if read_current(store) != name else None
    except CorruptStoreError:
        return None  # it may have been published: keep it


def discard_staging(store: Path, staging: Path) -> str | None:
    """Remove a staging folder, and the version it had renamed into place but not published; gives that one's
    name.

    The folder goes last: until then it says what is still to be removed.
    """
    removed = unpublished_version(store, staging)
    if removed is not None:
        (store / removed).rename(staging / "unpublished")
    for entry in staging.iterdir():
        if entry.name != RENAMED_NAME:
            _delete(entry)
    shutil.rmtree(staging, ignore_errors=True)
    return removed


def clear_leftovers(store: Path) -> list[str]:
    """Remove what dead writers left; the caller holds the lock. Gives the names of what was removed."""
    removed = []
    for staging in leftovers(store):
        unpublished = discard_staging(store, staging)
        removed += [staging.name] if unpublished is None else [staging.name, unpublished]
    return removed


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
