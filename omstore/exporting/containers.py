"""Files of several members that are written at the same time: zip and tar, laid out before they are filled.

One pass over the rows gives next nodes, probabilities and rewards together, but in a file their arrays stand
one behind the other. Their sizes are known beforehand, so each is written where it will stand: one pass, and
no temporary copies.
"""

from __future__ import annotations

import os
import struct
import tarfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from numpy.typing import NDArray

from omstore.errors import CorruptStoreError, UsageError
from omstore.exporting.destination import require_room
from omstore.format import durable

__all__ = ["Container", "Member", "Stream", "TarContainer", "ZipContainer"]

_BUFFER = 1 << 20
_WINDOW = durable.WRITEBACK_WINDOW
_BLOCK = 512


@dataclass(frozen=True)
class Member:
    """A member of a container: its name, and its bytes."""

    name: str
    size: int


class Stream:
    """One member, written front to back, at its own place in the file.

    Writeback starts every 8 MiB, and the window before is waited for, so that a job whose memory limit
    counts page cache isn't stalled by pages that can't be dropped yet. Memory: at most 1 MiB.

    Attributes
    ----------
    start, size : int
        Where it stands in the file, and its bytes.
    written : int
        Bytes written so far.
    crc : int
        CRC-32 of them, where it is asked for.
    """

    def __init__(self, descriptor: int, member: Member, start: int, checked: bool) -> None:
        self.name, self.size, self.start = member.name, member.size, start
        self.written = 0
        self.crc = 0
        self._descriptor = descriptor
        self._checked = checked
        self._buffer = bytearray()
        self._flushed = 0
        self._window = 0

    def write(self, data: bytes | memoryview | NDArray[Any]) -> None:
        """Append bytes, or a contiguous array as it lies in memory.

        Raises
        ------
        CorruptStoreError
            If it is more than the member was planned to hold: the store holds more than it says.
        """
        view = memoryview(
            cast(bytes, data)
        )  # arrays are buffers as well, which mypy doesn't know before 3.12
        if view.nbytes == 0:
            return
        view = view.cast("B")
        self.written += view.nbytes
        if self.written > self.size:
            raise CorruptStoreError(f"{self.name}: the store holds more than its manifest counts")
        if self._checked:
            self.crc = zlib.crc32(view, self.crc)
        if len(self._buffer) + view.nbytes <= _BUFFER:
            self._buffer += view
            return
        self.flush()
        self._put(view)

    def flush(self) -> None:
        """Write out what is buffered."""
        buffer, self._buffer = self._buffer, bytearray()
        self._put(memoryview(buffer))

    def _put(self, view: memoryview) -> None:
        while view.nbytes:
            count = os.pwrite(self._descriptor, view, self.start + self._flushed)
            view = view[count:]
            self._flushed += count
        while self._flushed - self._window >= _WINDOW:
            begin = self.start + self._window
            durable._sync_range(self._descriptor, begin, _WINDOW, durable._SYNC_WRITE)
            if self._window:
                wait = durable._SYNC_WAIT_BEFORE | durable._SYNC_WRITE | durable._SYNC_WAIT_AFTER
                durable._sync_range(self._descriptor, begin - _WINDOW, _WINDOW, wait)
            self._window += _WINDOW


class Container(ABC):
    """A file with members whose sizes are known; a context manager that finishes the file.

    Parameters
    ----------
    path : Path
        An existing file that is written over.
    members : sequence of Member
        In the order in which they stand in the file.

    Raises
    ------
    DiskFullError
        If the disk has no room for it: all of it is known before anything is written.
    """

    _checked = False

    def __init__(self, path: Path, members: Sequence[Member]) -> None:
        if len({member.name for member in members}) != len(members):
            raise UsageError("two members of the file have the same name")
        self._path = path
        self._heads: list[tuple[int, int]] = []
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self.streams: dict[str, Stream] = {}
        try:
            position = 0
            for member in members:
                start = position + self._head_size(member)
                self._heads.append((position, start))
                self.streams[member.name] = Stream(self._descriptor, member, start, self._checked)
                position = start + member.size + self._padding(member.size)
            self._body = position
            require_room(path, position)
            os.ftruncate(self._descriptor, position)
        except BaseException:
            os.close(self._descriptor)
            raise

    def __getitem__(self, name: str) -> Stream:
        return self.streams[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            os.close(self._descriptor)

    def _finish(self) -> None:
        for (position, _), stream in zip(self._heads, self.streams.values(), strict=True):
            stream.flush()
            if stream.written != stream.size:
                raise CorruptStoreError(
                    f"{stream.name}: the store holds less than its manifest counts "
                    f"({stream.written:,} of {stream.size:,} bytes)"
                )
            self._write(self._head(stream), position)
        self._write(self._end(), self._body)

    def _write(self, data: bytes, position: int) -> None:
        while data:
            count = os.pwrite(self._descriptor, data, position)
            data, position = data[count:], position + count

    @abstractmethod
    def _head_size(self, member: Member) -> int:
        """Bytes before a member's data."""

    @abstractmethod
    def _head(self, stream: Stream) -> bytes:
        """Make what stands before a member's data."""

    @abstractmethod
    def _padding(self, size: int) -> int:
        """Bytes behind a member's data."""

    @abstractmethod
    def _end(self) -> bytes:
        """Make what stands behind all members."""


class TarContainer(Container):
    """A tar file (GNU format, so that members may have more than 8 GiB); no times, no owners."""

    def _head_size(self, member: Member) -> int:
        return len(_tar_head(member.name, member.size))

    def _head(self, stream: Stream) -> bytes:
        return _tar_head(stream.name, stream.size)

    def _padding(self, size: int) -> int:
        return -size % _BLOCK

    def _end(self) -> bytes:
        return bytes(2 * _BLOCK + -(self._body + 2 * _BLOCK) % tarfile.RECORDSIZE)


def _tar_head(name: str, size: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size = size
    return entry.tobuf(tarfile.GNU_FORMAT)


_ZIP64 = 0xFFFFFFFF  # from here on a number stands in a 64-bit field,
_ELSEWHERE = 0xFFFFFFFF  # and this where it would have stood
_LONG_AGO = 0x21  # 1980-01-01, the first day zip knows: files made twice are the same


class ZipContainer(Container):
    """A zip file of stored (uncompressed) members; the 64-bit fields are used where they are needed.

    Layout after PKWARE's APPNOTE.TXT 6.3.10, sections 4.3.7 to 4.3.16 and 4.5.3.
    """

    _checked = True

    def _head_size(self, member: Member) -> int:
        return 30 + len(member.name.encode()) + (20 if member.size >= _ZIP64 else 0)

    def _padding(self, size: int) -> int:
        return 0

    def _head(self, stream: Stream) -> bytes:
        long = stream.size >= _ZIP64
        extra = struct.pack("<HHQQ", 1, 16, stream.size, stream.size) if long else b""
        return b"PK\3\4" + self._fields(stream, long, extra) + stream.name.encode() + extra

    @staticmethod
    def _fields(stream: Stream, long: bool, extra: bytes) -> bytes:
        """Make what the local and the central header have in common."""
        name = stream.name.encode()
        size = _short(stream.size)
        flags = 0 if stream.name.isascii() else 1 << 11
        version = 45 if long else 20
        return struct.pack(
            "<HHHHHIIIHH", version, flags, 0, 0, _LONG_AGO, stream.crc, size, size, len(name), len(extra)
        )

    def _end(self) -> bytes:
        entries = [
            self._central(stream, position)
            for (position, _), stream in zip(self._heads, self.streams.values(), strict=True)
        ]
        directory = b"".join(entries)
        count, start, end = len(entries), self._body, self._body + len(directory)
        tail = b""
        if max(start, len(directory)) >= _ZIP64 or count >= 0xFFFF:
            tail = b"PK\6\6" + struct.pack(
                "<QHHIIQQQQ", 44, 45, 45, 0, 0, count, count, len(directory), start
            )
            tail += b"PK\6\7" + struct.pack("<IQI", 0, end, 1)
        short = min(count, 0xFFFF)
        tail += b"PK\5\6" + struct.pack(
            "<HHHHIIH", 0, 0, short, short, _short(len(directory)), _short(start), 0
        )
        return directory + tail

    def _central(self, stream: Stream, position: int) -> bytes:
        numbers = [stream.size, stream.size] if stream.size >= _ZIP64 else []
        numbers += [position] if position >= _ZIP64 else []
        extra = struct.pack(f"<HH{len(numbers)}Q", 1, 8 * len(numbers), *numbers) if numbers else b""
        fields = self._fields(stream, bool(numbers), extra)
        made_by = struct.pack("<H", 0x031E)  # Unix, version 3.0: the attributes below are Unix's
        rest = struct.pack("<HHHII", 0, 0, 0, 0o100644 << 16, _short(position))
        return b"PK\1\2" + made_by + fields + rest + stream.name.encode() + extra


def _short(number: int) -> int:
    return _ELSEWHERE if number >= _ZIP64 else number
