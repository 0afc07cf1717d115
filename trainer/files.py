"""Files of the export's om/ folder: whole or not there, and one trainer at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from omstore.errors import DiskFullError, UsageError, WriterBusyError
from omstore.memory import format_bytes

__all__ = ["LOCK_NAME", "flush_folder", "training_lock", "write_atomically"]

LOCK_NAME = "LOCK"

# A module-level name so that tests needn't wait for the disk, and can inject faults.
_fsync = os.fsync


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that at any moment, also after a crash, the old one or the new one is there, whole.

    Raises
    ------
    DiskFullError
        If there is no room; the old file is still there.
    """
    temporary = path.with_name(f".{path.name}.partial")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            _fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(
                f"The disk is full while writing {path}; {format_bytes(len(data))} were needed. "
                "What was there before still is.",
                "Make room on that disk and run it again: it goes on from the last checkpoint.",
            ) from error
        raise
    flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def training_lock(folder: Path) -> Iterator[None]:
    """Be the only trainer of an export while the context lasts; makes the folder.

    The lock is the kernel's (flock): it ends with the process, however that ends.

    Raises
    ------
    WriterBusyError
        If another process trains there; names it.
    UsageError
        If the folder can't be made or its file system has no locks.
    """
    path = folder / LOCK_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise UsageError(
            f"{folder} can't be written: {error.strerror}",
            "Training needs write permission for the export's folder.",
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise WriterBusyError(
                f"Another process trains in {folder}: {_holder(descriptor)}",
                "Wait until it is done, or end it; the lock ends with its process.",
            ) from error
        except OSError as error:
            raise UsageError(
                f"The file system of {folder} has no locks: {error.strerror}",
                "Train on a copy on a local disk.",
            ) from error
        record = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        }
        with contextlib.suppress(OSError):  # who holds it is information only
            os.pwrite(descriptor, (json.dumps(record).ljust(255) + "\n").encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _holder(descriptor: int) -> str:
    try:
        record = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {record['pid']} on {record['host']}, since {record['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "which one isn't known"
