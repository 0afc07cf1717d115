"""The published versions of a store: find, list, delete, and go back to an earlier one. Finding takes no
lock.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from omstore.errors import CorruptStoreError, SchemaVersionError, StoreError, StoreNotFoundError, UsageError
from omstore.format.manifest import MANIFEST_NAME, Counts, read_manifest
from omstore.format.verify import check_sizes
from omstore.publish.folders import (
    CURRENT_NAME,
    clear_leftovers,
    discard_staging,
    leftovers,
    new_staging,
    parse_version,
    read_current,
    remove_version,
    replace_current,
    unpublished_version,
    version_name,
    version_number,
    version_numbers,
)
from omstore.publish.lock import WriterLock
from omstore.publish.staging import STORE_NAME

__all__ = ["Removed", "VersionInfo", "current", "find_store", "gc", "resolve", "rollback", "versions"]


@dataclass(frozen=True)
class VersionInfo:
    """One version of a store.

    Attributes
    ----------
    name : str
        Such as ``v000001``.
    is_current : bool
        Whether it is the live one.
    size : int
        Bytes on disk, manifest included.
    published : datetime.datetime or None
        When its manifest was written, UTC; None where there is no manifest.
    counts : Counts or None
        What it holds; None where the manifest can't be read.
    encoding : str
        Its row encoding; empty where the manifest can't be read.
    problem : str
        Why the manifest can't be read; empty when it can.
    """

    name: str
    is_current: bool
    size: int
    published: datetime.datetime | None
    counts: Counts | None
    encoding: str
    problem: str


@dataclass(frozen=True)
class Removed:
    """What :func:`gc` removed (or would remove): names of folders in the store, and their bytes."""

    names: tuple[str, ...]
    size: int


def find_store(path: Path) -> Path:
    """Give the store's folder for an export's folder, a store's folder, or a version's folder.

    Raises
    ------
    StoreNotFoundError
        If there is none.
    """
    path = Path(path)
    if (path / MANIFEST_NAME).is_file():
        return path.absolute().parent
    if (path / STORE_NAME).is_dir():
        return path / STORE_NAME
    if (path / CURRENT_NAME).is_file() or version_numbers(path):
        return path
    if not path.exists():
        raise StoreNotFoundError(
            f"There is no folder {path}", "Give the export's folder, such as exports/pursuit/3."
        )
    raise StoreNotFoundError(f"There is no store in {path}", f"Make one: omstore convert {path}")


def current(export: Path) -> str | None:
    """Name of the live version, or None where nothing was published.

    Raises
    ------
    StoreNotFoundError
        If there is no store.
    CorruptStoreError
        If ``CURRENT`` is broken, or names a missing version.
    """
    return read_current(find_store(export))


def resolve(export: Path, version: str | int | None = None) -> Path:
    """Find the folder of a version.

    Parameters
    ----------
    export : Path
        An export's folder, its store's, or a version's.
    version : str or int, optional
        ``"v000001"``, ``"1"`` or 1; by default the live version, or the version whose folder was given.

    Returns
    -------
    Path
        The version's folder, which has a manifest.

    Raises
    ------
    StoreNotFoundError
        If there is no store, nothing was published, or there is no such version.
    CorruptStoreError
        If ``CURRENT`` is broken or names a missing version, or the version has no manifest.
    """
    export = Path(export)
    if (export / MANIFEST_NAME).is_file():
        if version is not None and parse_version(version) != export.absolute().name:
            raise UsageError(f"{export} is a version's folder, but version {version} was asked for")
        return export
    store = find_store(export)
    names = [version_name(number) for number in version_numbers(store)]
    if version is not None:
        name = parse_version(version)
        if name not in names:
            known = f"It has {', '.join(names)}." if names else "It has none."
            raise StoreNotFoundError(f"There is no version {name} in {store}", known)
    else:
        live = read_current(store)
        if live is None:
            hint = f"omstore rollback --to {names[-1]}" if names else f"Make one: omstore convert {export}"
            raise StoreNotFoundError(f"Nothing is published in {store}", hint)
        name = live
    if not (store / name / MANIFEST_NAME).is_file():
        raise CorruptStoreError(
            f"{store / name / MANIFEST_NAME} is missing", "`omstore rollback` goes to another version."
        )
    return store / name


def versions(export: Path) -> list[VersionInfo]:
    """List the versions of a store, oldest first; raises `StoreNotFoundError` where there is no store."""
    store = find_store(export)
    try:
        live = read_current(store)
    except CorruptStoreError:
        live = None
    return [_describe(store, version_name(number), live) for number in version_numbers(store)]


def _describe(store: Path, name: str, live: str | None) -> VersionInfo:
    folder = store / name
    published = counts = None
    encoding = problem = ""
    try:
        moment = (folder / MANIFEST_NAME).stat().st_mtime
        published = datetime.datetime.fromtimestamp(moment, datetime.UTC)
        manifest = read_manifest(folder)
        counts, encoding = manifest.counts, str(manifest.rows.get("encoding", ""))
    except FileNotFoundError:
        problem = "it has no manifest"
    except StoreError as error:
        problem = error.message
    return VersionInfo(name, name == live, folder_size(folder), published, counts, encoding, problem)


def folder_size(folder: Path) -> int:
    """Bytes of all files in a folder; files that vanish meanwhile count nothing."""
    size = 0
    for path in folder.rglob("*"):
        try:
            size += 0 if path.is_dir() else path.lstat().st_size
        except FileNotFoundError:
            continue
    return size


def gc(export: Path, keep: int = 1, dry_run: bool = False) -> Removed:
    """Delete versions, and what killed writers left.

    Parameters
    ----------
    export : Path
        An export's or a store's folder.
    keep : int
        How many versions stay: the live one, and the newest others.
    dry_run : bool
        Only say what would be removed.

    Raises
    ------
    StoreNotFoundError
        If there is no store, or there are versions but none is live.
    WriterBusyError
        If somebody is writing.
    UsageError
        If `keep` is less than 1.
    """
    if keep < 1:
        raise UsageError(f"At least the live version stays; keep={keep}", "Use --keep 1 or more.")
    store = find_store(export)
    with WriterLock(store) as lock:
        live = read_current(store)
        dead = [path.name for path in leftovers(store)]
        unpublished = {unpublished_version(store, store / name) for name in dead}
        numbers = version_numbers(store)
        names = [name for name in map(version_name, numbers) if name not in unpublished]
        if live is None and names:
            raise StoreNotFoundError(
                f"No version of {store} is live, so all would be deleted",
                f"Choose the one to keep first: omstore rollback --to {names[-1]}",
            )
        others = [name for name in names if name != live]
        doomed = others[: max(0, len(others) - (keep - 1))]
        removed = (*dead, *sorted(filter(None, unpublished)), *doomed)
        size = sum(folder_size(store / name) for name in removed)
        if not dry_run:
            clear_leftovers(store)
            if doomed:
                lock.remember(version_number(names[-1]))  # lest the number be given to other contents
            for name in doomed:
                remove_version(store, name)
        return Removed(removed, size)


def rollback(export: Path, to: str | int | None = None) -> str:
    """Make another version the live one, atomically.

    Parameters
    ----------
    export : Path
        An export's or a store's folder.
    to : str or int, optional
        The version; by default the newest one older than the live version.

    Returns
    -------
    str
        The name of the version that is live now.

    Raises
    ------
    StoreNotFoundError
        If there is no such version.
    CorruptStoreError
        If that version isn't whole.
    WriterBusyError
        If somebody is writing.
    """
    store = find_store(export)
    with WriterLock(store):
        clear_leftovers(store)
        numbers = version_numbers(store)
        if to is None:
            live = read_current(store)
            older = [number for number in numbers if live is None or number < version_number(live)]
            if not older:
                raise StoreNotFoundError(f"{store} has no version older than {live}", "See: omstore versions")
            name = version_name(older[-1])
        else:
            name = resolve(store, to).name
        _check_whole(store / name)
        staging = new_staging(store)
        try:
            replace_current(store, name, staging)
        finally:
            discard_staging(store, staging)
    return name


def _check_whole(folder: Path) -> None:
    try:
        manifest = read_manifest(folder)
    except SchemaVersionError:
        return  # written by a newer omstore, whose reader will check it
    check_sizes(folder, manifest)
