"""Files that are hashed while they are written, never leave much unwritten in the page cache, and reach the
disk.

Every byte of a version goes through :class:`DigestFile` (or is hashed afterwards by :func:`digest_file`), so
the manifest's digests cost no second reading, and a full disk is a :class:`~omstore.errors.DiskFullError`
wherever it strikes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from omstore.errors import DiskFullError, OmstoreError, PublishError, UsageError
from omstore.memory import format_bytes

__all__ = ["DigestFile", "FileDigest", "digest_file", "disk_errors", "fsync_path", "write_file"]

WRITEBACK_WINDOW = 8 << 20
"""Bytes after which writeback of a file starts; at most two windows of a file are dirty at a time."""

_SMALL_WRITE = 1 << 20
_SYNC_WAIT_BEFORE, _SYNC_WRITE, _SYNC_WAIT_AFTER = 1, 2, 4
_UNSUPPORTED = {errno.ENOSYS, errno.EINVAL, errno.ESPIPE, errno.EOPNOTSUPP}
_FULL = {errno.ENOSPC, errno.EDQUOT}
_FORBIDDEN = {errno.EROFS, errno.EACCES, errno.EPERM}
_BROKEN = {errno.EIO, errno.ESTALE}

# Module-level names so that tests can inject faults at any write.
_write = os.write
_fsync = os.fsync
_fallocate = os.posix_fallocate


@dataclass(frozen=True)
class FileDigest:
    """Size in bytes and sha256 (hex) of one file."""

    size: int
    sha256: str

    def to_dict(self) -> dict[str, Any]:
        """Give the JSON form."""
        return {"size": self.size, "sha256": self.sha256}


def _free_bytes(path: Path) -> int | None:
    for folder in (path, *path.parents):
        try:
            status = os.statvfs(folder)
        except OSError:
            continue
        return status.f_bavail * status.f_frsize
    return None


def translate_disk_error(error: OSError, path: Path, needed: int | None = None) -> OmstoreError | None:
    """Give omstore's error for a full or forbidden disk, or None where the error is another one.

    Parameters
    ----------
    error : OSError
        What the system said.
    path : Path
        The file or folder that was being written.
    needed : int, optional
        Bytes that were about to be written, where known.
    """
    if isinstance(error, OmstoreError):
        return None
    if error.errno in _FULL:
        free = _free_bytes(path)
        wanted = f"; {format_bytes(needed)} were needed" if needed else ""
        left = "" if free is None else f", {format_bytes(free)} are free"
        reason = "over quota" if error.errno == errno.EDQUOT else "full"
        return DiskFullError(
            f"The disk is {reason} while writing {path}{wanted}{left}. Nothing was published.",
            "Make room on that disk (`omstore gc` removes old versions), or put the export on a larger one.",
        )
    if error.errno in _FORBIDDEN:
        return PublishError(
            f"Cannot write {path}: {os.strerror(error.errno or 0)}. The live version is unchanged.",
            "Writing needs write permission for the export's folder on a disk that isn't mounted read-only.",
        )
    if error.errno in _BROKEN:
        return PublishError(
            f"Writing {path} failed: {os.strerror(error.errno or 0)}. The live version is unchanged.",
            "Look for disk or network trouble in the system's log; then run it again.",
        )
    return None


@contextlib.contextmanager
def disk_errors(path: Path, needed: int | None = None) -> Iterator[None]:
    """Turn a full disk into `DiskFullError`, and missing permission to write into `PublishError`.

    Parameters
    ----------
    path : Path
        The file or folder being written, for the message.
    needed : int, optional
        Bytes about to be written, where known.
    """
    try:
        yield
    except OSError as error:
        translated = translate_disk_error(error, path, needed)
        if translated is None:
            raise
        raise translated from error


def _find_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    try:
        function = ctypes.CDLL(None, use_errno=True).sync_file_range
    except (AttributeError, OSError):
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    function.restype = ctypes.c_int
    return function


_sync_file_range = _find_sync_file_range()


def _sync_range(descriptor: int, start: int, length: int, flags: int) -> None:
    if _sync_file_range is None:
        os.fdatasync(descriptor)
        return
    if _sync_file_range(descriptor, start, length, flags) != 0:
        code = ctypes.get_errno()
        # A failed write-back is reported once only: swallowed here, the later fsync would say all is well.
        if code not in _UNSUPPORTED:
            raise OSError(code, os.strerror(code))


class DigestFile:
    """A new file, written front to back and hashed on the way.

    Writeback starts every 8 MiB and the window before is waited for, so at most 16 MiB of the file are dirty:
    a job whose memory limit counts page cache then isn't stalled or killed for pages that can't be dropped
    yet. Memory: a buffer of at most 1 MiB, for small writes.

    Parameters
    ----------
    path : Path
        The file; its folder is made where missing.

    Raises
    ------
    UsageError
        If the file exists.
    DiskFullError, PublishError
        If the disk is full, or the folder can't be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._sha256 = hashlib.sha256()
        self._buffer = bytearray()
        self._flushed = 0
        self._window = 0
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            except FileExistsError as error:
                raise UsageError(f"{path} exists already; a version's files are written once") from error

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append the bytes of a contiguous buffer."""
        view = memoryview(data)
        if view.nbytes == 0:
            return
        view = view.cast("B")
        self._sha256.update(view)
        self.size += view.nbytes
        if len(self._buffer) + view.nbytes <= _SMALL_WRITE:
            self._buffer += view
            return
        self._flush_buffer()
        if view.nbytes < _SMALL_WRITE:
            self._buffer += view
            return
        for start in range(0, view.nbytes, WRITEBACK_WINDOW):
            self._write_through(view[start : start + WRITEBACK_WINDOW])

    def finish(self) -> FileDigest:
        """Write out what is buffered, fsync, close, and give size and digest."""
        try:
            self._flush_buffer()
            with disk_errors(self.path):
                _fsync(self._descriptor)
        finally:
            self.abandon()
        return FileDigest(self.size, self._sha256.hexdigest())

    def abandon(self) -> None:
        """Close without writing what is buffered; does nothing when closed already."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def _flush_buffer(self) -> None:
        if self._buffer:
            buffer, self._buffer = self._buffer, bytearray()
            self._write_through(memoryview(buffer))

    def _write_through(self, view: memoryview) -> None:
        with disk_errors(self.path, view.nbytes):
            while view.nbytes:
                written = _write(self._descriptor, view)
                view = view[written:]
                self._flushed += written
            while self._flushed - self._window >= WRITEBACK_WINDOW:
                start = self._window
                _sync_range(self._descriptor, start, WRITEBACK_WINDOW, _SYNC_WRITE)
                if start:
                    wait = _SYNC_WAIT_BEFORE | _SYNC_WRITE | _SYNC_WAIT_AFTER
                    _sync_range(self._descriptor, start - WRITEBACK_WINDOW, WRITEBACK_WINDOW, wait)
                self._window += WRITEBACK_WINDOW

    def __enter__(self) -> DigestFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._descriptor >= 0:
            self.finish()
        self.abandon()

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            self.abandon()


def write_file(path: Path, data: bytes) -> FileDigest:
    """Write a small new file, fsync it, and give its digest."""
    file = DigestFile(path)
    try:
        file.write(data)
        return file.finish()
    finally:
        file.abandon()


def digest_file(path: Path) -> FileDigest:
    """Read a file once and give its size and digest; memory: one buffer of 256 KiB."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return FileDigest(file.tell(), digest.hexdigest())


def fsync_path(path: Path) -> None:
    """Flush a file, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with disk_errors(path):
            _fsync(descriptor)
    finally:
        os.close(descriptor)
