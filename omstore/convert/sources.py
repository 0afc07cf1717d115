"""The export's pickles: found, read into spools (both at once), fingerprinted on the way."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from omstore.convert.records import ArrayFile, RecordReader, range_in
from omstore.convert.spool import Spool
from omstore.errors import ExportNotFoundError
from omstore.format.manifest import Source
from omstore.legacy.fields import ArraySource, ColumnRange, ColumnRef, Records
from omstore.legacy.names import GRAPH_NAME, REPLAY_NAME
from omstore.legacy.reader import read_pickle
from omstore.legacy.schema import PickleTree
from omstore.legacy.source import PickleSource
from omstore.progress import Progress

__all__ = ["LegacyFile", "find_pickles", "read_files"]

_ENDINGS = ("", ".gz", ".zst", ".zstd", ".xz")


def find_pickles(export: Path) -> dict[str, Path]:
    """Find an export's pickles, plain or compressed.

    Returns
    -------
    dict
        ``"graph"`` and ``"replay"`` to paths; what is missing is left out.

    Raises
    ------
    ExportNotFoundError
        If there is neither.
    """
    export = Path(export)
    found: dict[str, Path] = {}
    for part, name in (("graph", GRAPH_NAME), ("replay", REPLAY_NAME)):
        for ending in _ENDINGS:
            path = export / "wm" / (name + ending)
            if path.is_file():
                found[part] = path
                break
    if not found:
        if not export.is_dir():
            raise ExportNotFoundError(
                f"there is no folder {export}", "Give the folder that holds wm/, such as exports/pursuit/3."
            )
        raise ExportNotFoundError(
            f"{export} holds neither wm/{GRAPH_NAME} nor wm/{REPLAY_NAME}",
            "Give the folder that holds wm/, such as exports/pursuit/3 (.gz, .zst and .xz may be "
            "appended to the names).",
        )
    return found


class _Fingerprint:
    """Hashes a file a step behind its reader, while its pages are still in the page cache."""

    _STEP = 1 << 20

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = path.stat().st_size
        self._hash = hashlib.sha256()
        self._done = 0

    def follow(self, reached: int) -> None:
        """Hash up to byte `reached`."""
        reached = min(reached, self.size)
        if reached <= self._done:
            return
        with self.path.open("rb", buffering=0) as file:
            while self._done < reached:
                data = os.pread(file.fileno(), min(self._STEP, reached - self._done), self._done)
                if not data:
                    break
                self._hash.update(data)
                self._done += len(data)

    def finish(self) -> str:
        self.follow(self.size)
        return self._hash.hexdigest()


@dataclass
class LegacyFile:
    """A pickle that was read into a spool.

    Attributes
    ----------
    path : Path
    tree : PickleTree
    spool : Spool
    source : Source
        Its fingerprint.
    """

    path: Path
    tree: PickleTree
    spool: Spool
    source: Source
    scratch: Path
    _arrays: PickleSource | None = None

    @property
    def name(self) -> str:
        """File name, for messages."""
        return self.path.name

    def range_of(self, records: Records, ref: ColumnRef) -> ColumnRange | None:
        """Return what was seen of a column while it was spooled."""
        return range_in(self.spool, records, ref)

    def reader(self, records: Records) -> RecordReader:
        """Make a reader of some of its records."""
        arrays = None
        if any(isinstance(source, ArraySource) for source in records.sources):
            if self._arrays is None:
                self._arrays = PickleSource(self.path, self.scratch)
            arrays = ArrayFile(self._arrays)
        return RecordReader(records, self.spool, arrays)

    def close(self) -> None:
        """Delete the spool and the decompressed copy."""
        self.spool.close()
        if self._arrays is not None:
            self._arrays.close()
            self._arrays = None

    def __enter__(self) -> LegacyFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_files(
    files: Mapping[str, Path], export: Path, scratch: Path, budget: int, progress: Progress
) -> dict[str, LegacyFile]:
    """Read pickles into spools, each in a thread of its own (the reader releases the GIL).

    Parameters
    ----------
    files : mapping
        From `find_pickles`.
    export : Path
        What the fingerprints' names are relative to.
    scratch : Path
        Folder for the spools.
    budget : int
        Bytes of anonymous memory for all readers together.
    progress : Progress

    Raises
    ------
    LegacyError
        The first that a reader raises; the other reader is stopped.
    KeyboardInterrupt
        When interrupted, once both readers have stopped.
    """
    cancel = threading.Event()
    done: dict[str, LegacyFile] = {}
    errors: list[BaseException] = []

    def read(part: str, path: Path) -> None:
        folder = scratch / part
        folder.mkdir(parents=True, exist_ok=True)
        spool = Spool(folder)
        fingerprint = _Fingerprint(path)
        try:
            with progress.task(f"reading {path.name}", None, "B") as task:

                def report(walked: int, total: int) -> None:
                    task.set(walked // 2, total // 2)  # two passes over the pickle's bytes
                    fingerprint.follow(walked if walked < total // 2 else fingerprint.size)

                tree = read_pickle(
                    path, spool, scratch=folder, budget=budget // len(files), cancel=cancel, progress=report
                )
                task.set(tree.num_bytes, tree.num_bytes)
            source = Source(str(path.relative_to(export)), fingerprint.size, fingerprint.finish())
            done[part] = LegacyFile(path, tree, spool, source, folder)
        except BaseException as error:  # handed to the main thread, which raises it
            spool.close()
            errors.append(error)
            cancel.set()

    threads = [
        threading.Thread(target=read, args=item, name=f"omstore-read-{item[0]}", daemon=True)
        for item in files.items()
    ]
    for thread in threads:
        thread.start()
    try:
        _join(threads)
    except BaseException:
        cancel.set()
        _join(threads)
        _close(done.values())
        raise
    if errors:
        _close(done.values())
        raise next((e for e in errors if not isinstance(e, KeyboardInterrupt)), errors[0])
    return done


def _join(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        while thread.is_alive():
            thread.join(0.1)  # a join without end can't be interrupted


def _close(files: Iterable[LegacyFile]) -> None:
    for file in list(files):
        file.close()
