"""A legacy pickle as mapped bytes, decompressed to scratch first when it's compressed."""

from __future__ import annotations

import contextlib
import gzip
import lzma
import mmap
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, cast

import numpy as np
from numpy.typing import NDArray

from omstore.errors import DiskFullError, ExportNotFoundError, LegacyError, TruncatedPickleError, UsageError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["PickleSource", "compression_of"]

_MAGIC: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ\x00": "xz"}
_STEP: Final = 8 << 20


def compression_of(path: Path) -> str | None:
    """Name the compression around a file by its first bytes: ``gzip``, ``zstd``, ``xz`` or None."""
    with path.open("rb") as file:
        head = file.read(8)
    for magic, name in _MAGIC.items():
        if head.startswith(magic):
            return name
    return None


def _open_compressed(path: Path, compression: str) -> BinaryIO:
    if compression == "gzip":
        return cast(BinaryIO, gzip.open(path, "rb"))
    if compression == "xz":
        return cast(BinaryIO, lzma.open(path, "rb"))
    return cast(BinaryIO, zstd.open(path, "rb"))


class PickleSource:
    """The bytes of a pickle, memory-mapped.

    Parameters
    ----------
    path : Path
        The file; gzip, zstd and xz are recognised by their first bytes, whatever the name.
    scratch : Path, optional
        Folder for the decompressed copy; needed for compressed files only.
    cancel : threading.Event, optional
        Stops decompression with `KeyboardInterrupt`.
    progress : callable, optional
        Called with the number of bytes decompressed so far.

    Raises
    ------
    ExportNotFoundError
        If there is no such file.
    TruncatedPickleError
        If the compressed stream is damaged or ends early.
    DiskFullError
        If the decompressed copy doesn't fit.
    """

    def __init__(
        self,
        path: Path,
        scratch: Path | None = None,
        cancel: threading.Event | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.path = path
        self.name = path.name
        if not path.exists():
            raise ExportNotFoundError(f"No such file: {path}", "Check the path.")
        if path.is_dir():
            raise UsageError(f"{path} is a folder, not a pickle", "Name the file, such as wm/D.pkl.")
        self._temporary: Path | None = None
        try:
            self.compression = compression_of(path)
            if self.compression is not None:
                if scratch is None:
                    raise UsageError(
                        f"{path} is compressed, and there is no scratch folder to decompress it to"
                    )
                self._temporary = scratch / f"{path.name}.decompressed"
                self._decompress(self._temporary, self.compression, cancel, progress)
            self._file = (self._temporary or path).open("rb")
        except PermissionError as error:
            raise LegacyError(f"{path} can't be read: {error.strerror}", "Check its permissions.") from error
        self.size = os.fstat(self._file.fileno()).st_size
        if self.size == 0:
            self._file.close()
            raise TruncatedPickleError(f"{path} is empty", "Export it again.")
        self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        self._map.madvise(mmap.MADV_SEQUENTIAL)
        self.data: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)

    def _decompress(
        self,
        target: Path,
        compression: str,
        cancel: threading.Event | None,
        progress: Callable[[int], None] | None,
    ) -> None:
        try:
            with target.open("wb") as out, _open_compressed(self.path, compression) as stream:
                done = 0
                while block := stream.read(_STEP):
                    out.write(block)
                    done += len(block)
                    if progress is not None:
                        progress(done)
                    if cancel is not None and cancel.is_set():
                        raise KeyboardInterrupt
        except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zstd.ZstdError) as error:
            raise TruncatedPickleError(
                f"{self.path}: the {compression} stream is damaged or ends early ({error})",
                "Copy or export the file again.",
            ) from error
        except OSError as error:
            target.unlink(missing_ok=True)
            raise DiskFullError(
                f"Decompressing {self.path} into {target.parent} failed: {error.strerror}",
                "Free some disk space, or decompress the file yourself on another disk.",
            ) from error

    def release(self, start: int, stop: int) -> None:
        """Give back the pages of bytes start..stop; they are read again from the file when touched."""
        page = mmap.PAGESIZE
        low = (start + page - 1) // page * page
        high = stop // page * page
        if high > low:
            self._map.madvise(mmap.MADV_DONTNEED, low, high - low)

    def close(self) -> None:
        """Unmap, and delete the decompressed copy."""
        self.data = np.empty(0, np.uint8)
        with contextlib.suppress(BufferError):  # an array over the map is still alive; its pages go with it
            self._map.close()
        self._file.close()
        if self._temporary is not None:
            self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> PickleSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
