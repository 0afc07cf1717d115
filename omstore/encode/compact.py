"""`compact`: a published version's rows in another encoding, as a new version."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from omstore.encode.choose import check_encoding
from omstore.encode.encode import encode_rows
from omstore.encode.rows_to_encode import EncodedRows, RowsToEncode
from omstore.errors import CorruptStoreError, UsageError
from omstore.format.durable import digest_file
from omstore.format.manifest import SCHEMA_VERSION, TOOL_VERSION, Manifest
from omstore.memory import DEFAULT_BUDGET, PeakMemory
from omstore.progress import Progress, silent, timed
from omstore.publish.staging import Staging, stage, stage_dry
from omstore.read import Graph, Store, open_store
from omstore.read.arrays import VersionArrays
from omstore.rows.factored import FactoredRows

__all__ = ["CompactReport", "compact"]

_COPIED = ("nodes/", "index/", "replay/")
_ENCODED = ("rows/", "outcomes/", "nodes/attributes/")


@dataclass
class CompactReport:
    """What `compact` did.

    Attributes
    ----------
    version : str or None
        Name of the published version; None for a dry run.
    from_version : str
        The version whose rows were encoded.
    num_nodes, num_edges, num_joint_actions : int
    encoding_before, encoding, encoding_reason : str
        Row encodings, and why the new one was chosen.
    forecasts : list of dict
        What each row encoding was predicted to take.
    attributes : dict of str to str
        Level of each attribute.
    proof : dict
        Rows and edges compared, and the largest difference of a probability in ulp.
    bytes_before, store_bytes : int
        Of the two versions; for a dry run the second is a prediction.
    files : dict of str to int
        Bytes of the version's arrays, by their first folder.
    seconds : dict of str to float
        Wall time by stage.
    peak_anonymous : int
        Highest sampled anonymous memory of the process, bytes.
    dry_run : bool
    """

    version: str | None = None
    from_version: str = ""
    num_nodes: int = 0
    num_edges: int = 0
    num_joint_actions: int = 0
    encoding_before: str = ""
    encoding: str = ""
    encoding_reason: str = ""
    forecasts: list[dict[str, Any]] = field(default_factory=list)
    attributes: dict[str, str] = field(default_factory=dict)
    proof: dict[str, Any] = field(default_factory=dict)
    bytes_before: int = 0
    store_bytes: int = 0
    files: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    peak_anonymous: int = 0
    dry_run: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        return asdict(self)


def compact(
    export: Path,
    *,
    rows: str = "auto",
    max_ram: int = DEFAULT_BUDGET,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> CompactReport:
    """Encode the rows of the live version anew, and publish them as a new version.

    Nodes, index and replay are copied; attributes go to the lowest level at which they are functions; every
    edge is compared with the old version before the new one is published.

    Parameters
    ----------
    export : Path
        The export's folder.
    rows : str
        ``auto`` or a row encoding.
    max_ram : int
        Bytes of anonymous memory; what is written doesn't depend on it.
    dry_run : bool
        Forecast and choose, and publish nothing.
    progress : Progress, optional

    Raises
    ------
    StoreNotFoundError
        If there is no store.
    UsageError
        If the version has no graph, or the encoding is impossible for it.
    CorruptStoreError
        If a file of the version isn't what was published.
    DiskFullError, MemoryBudgetError
        If it won't fit; names the encoding that does.
    PublishError, WriterBusyError
        If the store can't be written.
    """
    check_encoding(rows)
    export = Path(export)
    with open_store(export) as store:
        graph = store.graph
        if graph is None:
            raise UsageError(f"{store.path} has a replay only: there are no rows to encode")
        report = CompactReport(from_version=store.version, dry_run=dry_run)
        run = _Compaction(store, graph, report, rows, max_ram, progress or silent())
        with PeakMemory() as peak, (stage_dry if dry_run else stage)(export) as staging:
            run.run(staging)
        report.peak_anonymous = peak.anonymous
    return report


class _Compaction:
    def __init__(
        self, store: Store, graph: Graph, report: CompactReport, rows: str, max_ram: int, progress: Progress
    ) -> None:
        self.store = store
        self.graph = graph
        self.report = report
        self.rows = rows
        self.max_ram = max_ram
        self.progress = progress

    def run(self, staging: Staging) -> None:
        manifest, report = self.store.manifest, self.report
        counts = manifest.counts
        report.num_nodes, report.num_edges = counts.num_nodes, counts.num_edges
        report.num_joint_actions = counts.num_joint_actions
        report.encoding_before = self.graph.encoding.name
        report.bytes_before = sum(digest.size for digest in manifest.files.values())
        copied = list(self._copied(manifest))
        with timed(self.report.seconds, "check"):
            self._check(manifest)
        if not report.dry_run:
            with timed(self.report.seconds, "copy"):
                for path in copied:
                    staging.copy_file(path, self.store.path / path, manifest.files[path])
        with timed(self.report.seconds, "rows"):
            encoded = self._encode(staging)
        report.encoding, report.encoding_reason = encoded.encoding, encoded.reason
        report.forecasts = [forecast.to_dict() for forecast in encoded.forecasts]
        report.attributes, report.proof = encoded.levels, encoded.proof
        if report.dry_run:
            predicted = {forecast.encoding: forecast.nbytes for forecast in encoded.forecasts}
            kept = sum(digest.size for path, digest in manifest.files.items() if path in set(copied))
            report.store_bytes = kept + predicted[encoded.encoding]
            return
        with timed(self.report.seconds, "publish"):
            report.files = staging.bytes_by_folder()
            report.store_bytes = sum(report.files.values())
            report.version = staging.publish(self._manifest(manifest, encoded))

    def _copied(self, manifest: Manifest) -> Iterator[str]:
        """Paths of the files to copy: of arrays, for groups are written anew."""
        for path in sorted(manifest.files):
            if path.startswith(_COPIED) and not path.startswith(_ENCODED) and not self._is_group(path):
                yield path

    def _is_group(self, path: str) -> bool:
        if not path.endswith("/zarr.json"):
            return False
        try:
            document = json.loads((self.store.path / path).read_bytes())
            return bool(document["node_type"] == "group")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CorruptStoreError(f"{self.store.path / path} is no zarr metadata") from error

    def _check(self, manifest: Manifest) -> None:
        """Compare what is encoded with its digests: damage must not be published under new ones."""
        checked = {path: digest for path, digest in manifest.files.items() if path.startswith(_ENCODED)}
        with self.progress.task("checking rows", sum(d.size for d in checked.values()), "B") as task:
            for path, digest in sorted(checked.items()):
                if digest_file(self.store.path / path) != digest:
                    raise CorruptStoreError(
                        f"{self.store.path / path} has other contents than were published (sha256 differs)",
                        "`omstore verify` lists what is damaged; publish again, or `omstore rollback`.",
                    )
                task.update(digest.size)

    def _encode(self, staging: Staging) -> EncodedRows:
        graph, store = self.graph, self.store
        arrays = VersionArrays(store.path, store.manifest)
        packed = arrays.hot("nodes/state", rows=graph.num_nodes, dtype=np.uint8)
        source = graph.encoding
        given = RowsToEncode(
            source,
            tuple(graph.attributes.values()),
            packed,
            store.manifest.state,
            graph.num_actions,
            factoring=source.factoring if isinstance(source, FactoredRows) else None,
        )
        return encode_rows(
            given,
            staging,
            rows=self.rows,
            budget=self.max_ram,
            all_forecasts=True,
            dry_run=self.report.dry_run,
            progress=self.progress,
        )

    def _manifest(self, before: Manifest, encoded: EncodedRows) -> Manifest:
        made = {"from": self.report.from_version, "rows": self.rows}
        return replace(
            before,
            rows=encoded.rows,
            attributes=encoded.attributes,
            options={**before.options, "compact": made},
            files={},
            tool_version=TOOL_VERSION,
            schema_version=SCHEMA_VERSION,
        )
