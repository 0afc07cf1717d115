"""Distributing fixed-size records over regions of one scratch file, and reading each region back as a
whole."""

from __future__ import annotations

import os
from array import array
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import kernel

__all__ = ["Scatter"]

_WRITE_BEHIND = 8 << 20


@kernel
def _deal(
    records: NDArray[np.uint8],
    regions: NDArray[np.int32],
    start: int,
    buffers: NDArray[np.uint8],
    filled: NDArray[np.int64],
) -> int:
    """Copy records to their regions' buffers until one is full; return where it stopped."""
    size = records.shape[1]
    capacity = buffers.shape[1] // size
    for i in range(start, records.shape[0]):
        region = regions[i]
        at = filled[region]
        if at == capacity:
            return i
        base = at * size
        for k in range(size):
            buffers[region, base + k] = records[i, k]
        filled[region] = at + 1
    return int(records.shape[0])


class Scatter:
    """Records dealt out to regions.

    Parameters
    ----------
    path : Path
        The scratch file; deleted by `close`.
    dtype : numpy.dtype
        Of a record (structured, packed).
    regions : int
    buffer_bytes : int
        Anonymous memory for all regions' buffers together.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], regions: int, buffer_bytes: int) -> None:
        self.path = path
        self.dtype = dtype
        self.counts = np.zeros(regions, np.int64)
        size = dtype.itemsize
        capacity = max(16, min(buffer_bytes // regions, 1 << 20) // size)
        self._buffers = np.zeros((regions, capacity * size), np.uint8)
        self._filled = np.zeros(regions, np.int64)
        self._extents = [array("q") for _ in range(regions)]
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._end = 0
        self._behind = 0

    def append(self, records: NDArray[Any], regions: NDArray[np.int32]) -> None:
        """Add records, each to its region."""
        matrix = records.view(np.uint8).reshape(len(records), self.dtype.itemsize)
        at = 0
        while True:
            at = int(_deal(matrix, regions, at, self._buffers, self._filled))
            if at == len(matrix):
                return
            self._flush(int(regions[at]))

    def _flush(self, region: int) -> None:
        count = int(self._filled[region])
        if not count:
            return
        view = self._buffers[region].data[: count * self.dtype.itemsize]
        self._extents[region].extend((self._end, len(view)))
        while len(view):
            written = os.pwrite(self._file, view, self._end)
            view, self._end = view[written:], self._end + written
        self.counts[region] += count
        self._filled[region] = 0
        if self._end - self._behind >= _WRITE_BEHIND:
            # starts writing back: a limit that counts page cache stalls on dirty pages, not on clean ones
            os.posix_fadvise(self._file, self._behind, self._end - self._behind, os.POSIX_FADV_DONTNEED)
            self._behind = self._end

    def finish(self) -> None:
        """Write what is still buffered; call before reading."""
        for region in range(len(self._extents)):
            self._flush(region)
        self._buffers = np.zeros((0, 0), np.uint8)

    def read(self, region: int, *, drop: bool = False) -> NDArray[Any]:
        """Read a region's records, in the order they came; ``drop`` gives its pages back."""
        out = np.empty(int(self.counts[region]), self.dtype)
        view = out.view(np.uint8).data
        extents = self._extents[region]
        for offset, length in zip(extents[::2], extents[1::2], strict=True):
            while length:
                got = os.preadv(self._file, [view[:length]], offset)
                if not got:
                    raise OSError(f"{self.path} is shorter than what was written to it")
                view, offset, length = view[got:], offset + got, length - got
        if drop:
            for offset, length in zip(extents[::2], extents[1::2], strict=True):
                os.posix_fadvise(self._file, offset, length, os.POSIX_FADV_DONTNEED)
        return out

    def close(self) -> None:
        """Delete the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self.path.unlink(missing_ok=True)
