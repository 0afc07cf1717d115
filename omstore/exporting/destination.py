"""Where an export goes: written under another name beside, and renamed when it is whole."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from omstore.errors import DiskFullError, OmstoreError, UsageError
from omstore.format.durable import fsync_path
from omstore.memory import format_bytes

__all__ = ["destination", "require_room"]

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}


@contextlib.contextmanager
def destination(out: Path, *, folder: tuple[str, ...] = (), force: bool = False) -> Iterator[Path]:
    """Give a temporary path to write to, and put what was written in place when the body is done.

    What is written is ``.NAME.part`` beside `out`, locked, so that a second export to the same place is
    refused and what a killed one left is written over. After an exception it is deleted. `out` is there as
    a whole or not at all.

    Parameters
    ----------
    out : Path
        The file, or folder, to make.
    folder : tuple of str
        Names of the files in it, where `out` is to be a folder; an existing folder is replaced only if it
        holds no others.
    force : bool
        Replace what is there.

    Yields
    ------
    Path
        An empty file or folder.

    Raises
    ------
    UsageError
        If `out` exists and isn't to be, or can't be, replaced; or can't be written.
    DiskFullError
        If the disk is full; nothing is left behind.
    """
    out = Path(out).absolute()
    part = out.with_name(f".{out.name}.part")
    _require_free(out, folder, force)
    with _disk_errors(out):
        lock = _open_locked(part, bool(folder))
        try:
            yield part
            _flush(part, folder)
            _require_free(out, folder, force)
            if folder and out.exists():
                _swap(part, out)
            else:
                part.replace(out)
        except BaseException:
            with contextlib.suppress(OSError):
                _remove(part)
            raise
        finally:
            os.close(lock)
        fsync_path(out.parent)


def require_room(path: Path, needed: int) -> None:
    """Refuse to begin what the disk has no room for.

    Parameters
    ----------
    path : Path
        The file to be written; it exists, and its folder is asked for.
    needed : int
        Its bytes.

    Raises
    ------
    DiskFullError
        With both numbers.
    """
    status = os.statvfs(path)
    free = status.f_bavail * status.f_frsize
    if needed > free:
        raise DiskFullError(
            f"{path.parent} has {format_bytes(free)} free, and the export takes {format_bytes(needed)}. "
            "Nothing was written.",
            "Name a file on a larger disk; `--to parquet` is compressed.",
        )


def _require_free(out: Path, folder: tuple[str, ...], force: bool) -> None:
    if not out.parent.is_dir():
        raise UsageError(f"there is no folder {out.parent}", f"Make it: mkdir -p {out.parent}")
    if not os.path.lexists(out):
        return
    if not force:
        raise UsageError(f"{out} exists already", "Name another one, or replace it with --force.")
    if bool(folder) != out.is_dir():
        is_a, needed = ("a folder", "a file") if out.is_dir() else ("a file", "a folder")
        raise UsageError(f"{out} is {is_a}, and {needed} is to be written", "Name another one.")
    if folder:
        others = sorted(entry.name for entry in out.iterdir() if entry.name not in folder)
        if others:
            raise UsageError(
                f"{out} holds {others[0]}, which no export writes; it isn't replaced", "Name another folder."
            )


def _open_locked(part: Path, folder: bool) -> int:
    """Make the temporary file or folder, or take over what a killed export left; give its descriptor."""
    while True:
        if folder:
            part.mkdir(exist_ok=True)
            descriptor = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
        else:
            descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = os.fstat(descriptor)
            if os.path.lexists(part) and os.path.samestat(mine, part.lstat()):
                break
        except BlockingIOError as error:
            os.close(descriptor)
            raise UsageError(
                f"another process is writing {part}", "Wait for it, or name another file."
            ) from error
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # another export has just renamed or deleted it: begin again
    if folder:
        for entry in part.iterdir():
            _remove(entry)
    else:
        os.ftruncate(descriptor, 0)
    return descriptor


def _flush(part: Path, folder: tuple[str, ...]) -> None:
    for name in folder:
        fsync_path(part / name)
    fsync_path(part)


def _swap(part: Path, out: Path) -> None:
    """Put a folder in another's place: there is no rename over one that holds something."""
    old = out.with_name(f".{out.name}.old")
    _remove(old)
    out.rename(old)
    try:
        part.rename(out)
    except OSError:
        old.rename(out)
        raise
    _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _disk_errors(out: Path) -> Iterator[None]:
    try:
        yield
    except OmstoreError:
        raise
    except OSError as error:
        where = error.filename
        ours = where is None or Path(os.fsdecode(where)).is_relative_to(out.parent)
        if error.errno in _FULL:
            raise DiskFullError(
                f"The disk is full while writing {out}. Nothing is left behind.",
                "Make room, or name a file on a larger disk.",
            ) from error
        if error.errno in _FORBIDDEN and ours:
            reason = os.strerror(error.errno or 0)
            raise UsageError(f"cannot write {out}: {reason}", "Name a file in a folder of yours.") from error
        raise
