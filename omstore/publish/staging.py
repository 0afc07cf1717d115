"""Build a version in a staging folder, and publish it as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omstore.errors import CorruptStoreError, OmstoreError, PublishError, UsageError
from omstore.format.durable import (
    DigestFile,
    FileDigest,
    digest_file,
    disk_errors,
    fsync_path,
    translate_disk_error,
    write_file,
)
from omstore.format.groups import write_groups
from omstore.format.hot import finish_hot
from omstore.format.manifest import Manifest, write_manifest
from omstore.format.verify import version_files
from omstore.publish.arrays import ArrayFolder
from omstore.publish.folders import (
    RENAMED_NAME,
    clear_leftovers,
    discard_staging,
    new_staging,
    read_current,
    remove_version,
    replace_current,
    version_name,
    version_numbers,
)
from omstore.publish.lock import WriterLock
from omstore.publish.scratch import ScratchArrays

__all__ = ["STEPS", "STORE_NAME", "Staging", "stage", "stage_dry"]

STORE_NAME = "store"

_COPY_BYTES = 1 << 20

STEPS = (
    "close",
    "scratch",
    "groups",
    "digests",
    "fsync",
    "manifest",
    "number",
    "rename",
    "current",
    "published",
    "old",
    "done",
)
"""The steps of a publication, in order; each is announced before it begins."""


def _step(name: str) -> None:
    """Announce a step of publication. Does nothing: tests put faults here."""


class Staging(ArrayFolder):
    """A version being built; made by :func:`stage`. Publishing closes the arrays that the caller didn't.

    Attributes
    ----------
    path : Path
        The version's folder to be. Everything in it is published.
    scratch : Path
        For temporary files, on the same disk; removed before publishing.
    name : str
        After publishing: the version's name.
    """

    def __init__(self, lock: WriterLock, folder: Path) -> None:
        super().__init__(folder / "version")
        self.store = lock.store
        self.scratch = folder / "scratch"
        self._folder = folder
        self._lock = lock
        self._published = False
        self.name = ""
        with disk_errors(folder):
            self.path.mkdir()
            self.scratch.mkdir()

    def adopt(self, scratch: ScratchArrays, name: str) -> None:
        """Move an array, or a folder of arrays, of `scratch` to the same name in the version.

        On the same disk this is a rename; digests taken while writing stay valid.

        Raises
        ------
        UsageError
            If the version has the name already, or `scratch` hasn't.
        """
        scratch.close()
        target, origin = self._array(name), scratch.path / name
        if target.exists() or not origin.is_dir():
            raise UsageError(f"{origin} can't become {target}")
        with disk_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(origin, target)
        for path, digest in list(scratch.files.items()):
            if path.is_relative_to(origin):
                self.files[target / path.relative_to(origin)] = digest
                del scratch.files[path]

    def copy_file(self, name: str, origin: Path, expected: FileDigest) -> None:
        """Copy a file of another version to the same name in this one, hashing it on the way.

        Raises
        ------
        CorruptStoreError
            If it isn't what was published.
        """
        try:
            with origin.open("rb") as source, DigestFile(self._array(name)) as copy:
                while block := source.read(_COPY_BYTES):
                    copy.write(block)
                digest = copy.finish()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise CorruptStoreError(f"{origin} is missing") from error
        if digest != expected:
            raise CorruptStoreError(
                f"{origin} has other contents than were published (sha256 differs)",
                "`omstore verify` lists what is damaged; publish again, or `omstore rollback`.",
            )
        self.files[self.path / name] = digest

    def bytes_by_folder(self) -> dict[str, int]:
        """Bytes of the version's files so far, by the first folder of their path."""
        sizes: dict[str, int] = {}
        for path in sorted(self.path.rglob("*")):
            if path.is_file():
                top = path.relative_to(self.path).parts[0]
                sizes[top] = sizes.get(top, 0) + path.stat().st_size
        return sizes

    def publish(self, manifest: Manifest) -> str:
        """Make what was built the live version.

        Everything reaches the disk first; the manifest is written last, the folder renamed into place, and
        ``CURRENT`` replaced by rename. Killed anywhere, ``CURRENT`` names the old version or the new one, and
        either is whole. The version that was live stays; those before it, and those published before the one
        before this, are deleted.

        Parameters
        ----------
        manifest : Manifest
            Its `files` are filled in here.

        Returns
        -------
        str
            The version's name.

        Raises
        ------
        DiskFullError, PublishError
            If anything can't be written. The live version is unchanged then.
        """
        if self._published:
            raise UsageError("This staging folder was published already; open another")
        with disk_errors(self.store):
            self._finish_files(manifest)
            previous = self._put_in_place()
            _step("old")
            self._remove_old(previous)
            _step("done")
        return self.name

    def _finish_files(self, manifest: Manifest) -> None:
        _step("close")
        self.close()
        for folder in self._mapped:
            self.files |= finish_hot(folder)
        _step("scratch")
        shutil.rmtree(self.scratch)
        _step("groups")
        self.files |= write_groups(self.path, _summary(manifest))
        _step("digests")
        files = self._all_digests()
        _step("fsync")
        for parent, _, names in os.walk(self.path, topdown=False):
            for name in names:
                fsync_path(Path(parent, name))
            fsync_path(Path(parent))
        _step("manifest")
        write_manifest(self.path, manifest.with_files(files))
        fsync_path(self.path)

    def _all_digests(self) -> dict[str, FileDigest]:
        files: dict[str, FileDigest] = {}
        for name in version_files(self.path):
            path = self.path / name
            known = self.files.get(path)
            if known is not None and known.size != path.stat().st_size:
                raise PublishError(f"{path} changed after it was closed")
            files[name] = digest_file(path) if known is None else known
        return files

    def _put_in_place(self) -> str | None:
        _step("number")
        try:
            previous = read_current(self.store)
        except CorruptStoreError:
            previous = None  # this publication mends it
        number = 1 + max([0, self._lock.last_version, *version_numbers(self.store)])
        self.name = version_name(number)
        write_file(self._folder / RENAMED_NAME, self.name.encode())
        fsync_path(self._folder)
        _step("rename")
        self.path.rename(self.store / self.name)
        fsync_path(self.store)
        _step("current")
        replace_current(self.store, self.name, self._folder)
        self._published = True
        _step("published")
        return previous

    def _remove_old(self, previous: str | None) -> None:
        """Delete what was published before the publication before this one, and isn't or wasn't just now
        live.

        The newest number but this one is the last publication's, even where a rollback made an older one
        live: its readers keep it until the next publication but one.
        """
        others = [version_name(n) for n in version_numbers(self.store) if version_name(n) != self.name]
        for name in others[:-1]:
            if name != previous:
                # It is published: what can't be deleted now is left for the next time, or for `omstore gc`.
                with contextlib.suppress(OSError, PublishError):
                    remove_version(self.store, name)


def _summary(manifest: Manifest) -> Mapping[str, Any]:
    """Give the root group's attributes: what a zarr tool shows to somebody who doesn't know omstore."""
    counts = manifest.counts
    return {
        "omstore": {
            "about": "a transition graph stored by omstore; manifest.json describes it",
            "agents": list(manifest.agents),
            "num_nodes": counts.num_nodes,
            "num_edges": counts.num_edges,
            "num_transitions": counts.num_transitions,
            "rows": manifest.rows.get("encoding", ""),
        }
    }


@contextlib.contextmanager
def stage(export: Path) -> Iterator[Staging]:
    """Build and publish a version of an export's store.

    Takes the writer lock, clears what killed writers left, and gives a staging folder beside the versions.
    Leaving the context removes the staging folder, published or not; ``with stage(export) as staging: ...
    staging.publish(manifest)``.

    Parameters
    ----------
    export : Path
        The export's folder, such as ``exports/pursuit/3``; made where missing.

    Raises
    ------
    WriterBusyError
        If another process is writing to this store.
    DiskFullError
        If the disk fills up, in here or in the body of the context; nothing is left behind.
    PublishError
        If the store can't be written.
    """
    store = Path(export).absolute() / STORE_NAME  # absolute: the body may change the working folder
    with WriterLock(store) as lock:
        try:
            with disk_errors(store):
                clear_leftovers(store)
                folder = new_staging(store)
            staging = None
            try:
                staging = Staging(lock, folder)
                yield staging
            finally:
                if staging is not None:
                    staging.abandon()
                with contextlib.suppress(
                    OSError
                ):  # else it would hide the first error; the next writer retries
                    discard_staging(store, folder)
        except OSError as error:
            translated = _translate_body_error(error, store)
            if translated is None:
                raise
            raise translated from error


@contextlib.contextmanager
def stage_dry(export: Path) -> Iterator[Staging]:
    """Stage in a folder of its own that goes afterwards, so that not even a lock file is left in the store.

    Parameters
    ----------
    export : Path
        The folder is made in it where it may be written, so that it is on the same disk.
    """
    parent: Path | None = export if os.access(export, os.W_OK) else None
    with (
        tempfile.TemporaryDirectory(prefix=".omstore-dry-run-", dir=parent) as folder,
        stage(Path(folder)) as staging,
    ):
        yield staging


def _translate_body_error(error: OSError, store: Path) -> OmstoreError | None:
    # The body reads pickles and writes elsewhere too: a forbidden file is ours only inside the store, while a
    # full disk is about what is being built wherever it shows (write() doesn't say which file).
    name = error.filename
    inside = isinstance(name, str | os.PathLike) and Path(name).is_relative_to(store)
    translated = translate_disk_error(error, Path(name) if inside else store)
    return translated if inside or not isinstance(translated, PublishError) else None
