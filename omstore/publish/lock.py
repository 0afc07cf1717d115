"""The writer lock: one writer a store, known by name to those it keeps out."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from omstore.errors import PublishError, WriterBusyError
from omstore.format import durable
from omstore.format.durable import disk_errors

__all__ = ["LOCK_NAME", "WriterLock"]

LOCK_NAME = "LOCK"


class WriterLock:
    """Hold the writer lock of a store while the context lasts.

    The lock is the kernel's (flock): it ends with the process, however that ends. The file stays, unless the
    store holds nothing else; it also remembers the highest version number that `omstore gc` deleted.

    Parameters
    ----------
    store : Path
        The store's folder; made where missing.

    Raises
    ------
    WriterBusyError
        On entering, if another writer holds it; names the process and host.
    PublishError
        If the folder can't be written, or its file system has no locks.
    """

    def __init__(self, store: Path) -> None:
        self.store = Path(store)
        self.path = self.store / LOCK_NAME
        self._descriptor = -1
        self._made: list[Path] = []

    @property
    def last_version(self) -> int:
        """The highest version number that must not be given away again though its version is gone; else 0."""
        number = _read(self._descriptor).get("last_version", 0)
        return number if type(number) is int else 0

    def remember(self, number: int) -> None:
        """Write down, before its version is deleted, that `number` was given away."""
        with disk_errors(self.path):
            self._record(max(number, self.last_version), busy=True)
            durable._fsync(self._descriptor)

    def __enter__(self) -> WriterLock:
        try:
            with disk_errors(self.store):
                while self._descriptor < 0:
                    self._descriptor = self._try_lock()
        except BaseException:
            self._remove_made()
            raise
        with contextlib.suppress(
            OSError
        ):  # who holds it is information only, and gc must work on a full disk
            self._record(self.last_version, busy=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def _try_lock(self) -> int:
        """Lock the file, and give its descriptor; -1 where a finishing writer removed it meanwhile."""
        try:
            self._make_store()
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            return -1
        except (FileExistsError, NotADirectoryError) as error:
            if self.store.is_symlink() or self.store.is_file():
                raise PublishError(
                    f"{self.store} is in the way: it isn't a folder", "Move it away."
                ) from error
            return -1
        try:
            self._flock(descriptor)
            # Unlinked between our open and flock, it protects nothing: others lock a new file.
            if _is_same_file(descriptor, self.path):
                kept, descriptor = descriptor, -1
                return kept
            return -1
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _remove_made(self) -> None:
        """Remove the folders that were made here, as far as they are empty."""
        for folder in dict.fromkeys(self._made):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _make_store(self) -> None:
        missing = []
        folder = self.store
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        self._made += missing
        self.store.mkdir(parents=True, exist_ok=True)

    def _flock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _read(descriptor)
            who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
            since = f", since {holder['since']}" if "since" in holder else ""
            raise WriterBusyError(
                f"Another writer holds {self.path}: {who}{since}",
                "Wait until it is done, or end it; the lock ends with its process.",
            ) from error
        except OSError as error:
            if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                raise PublishError(
                    f"The file system of {self.path} has no locks ({os.strerror(error.errno)})",
                    "Build on a local disk and copy the store's folder over.",
                ) from error
            raise

    def _record(self, last_version: int, *, busy: bool) -> None:
        record: dict[str, Any] = {"last_version": last_version}
        if busy:
            since = time.strftime("%Y-%m-%d %H:%M:%S %z")
            record |= {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
        # Padded, and written by one call, so that a kill leaves the old record or the new one.
        data = (json.dumps(record, sort_keys=True).ljust(255) + "\n").encode()
        os.pwrite(self._descriptor, data, 0)

    def _release(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        with contextlib.suppress(OSError):
            entries = {entry.name for entry in self.store.iterdir()} if self.store.exists() else set()
            if entries == {LOCK_NAME} and _read(descriptor).get("last_version", 0) == 0:
                # Nothing was ever published: leave nothing behind.
                self.path.unlink()
                self._made.insert(0, self.store)
                self._remove_made()
            else:
                self._descriptor = descriptor
                self._record(self.last_version, busy=False)
        self._descriptor = -1
        # Explicitly: children forked meanwhile share the lock, and closing alone wouldn't end it.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _read(descriptor: int) -> dict[str, Any]:
    try:
        record = json.loads(os.pread(descriptor, 4096, 0))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    here = os.fstat(descriptor)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
