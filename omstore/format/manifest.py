"""The manifest of a version: what it holds, from what, made how, and the digest of every file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from omstore.errors import CorruptStoreError, SchemaVersionError, UsageError
from omstore.format.durable import FileDigest, write_file
from omstore.format.metadata import json_bytes, load_json
from omstore.format.states import StateCodec

__all__ = [
    "MANIFEST_NAME",
    "READABLE_SCHEMAS",
    "SCHEMA_VERSION",
    "TOOL_VERSION",
    "Counts",
    "Manifest",
    "Source",
    "read_manifest",
    "write_manifest",
]

MANIFEST_NAME = "manifest.json"

_OWN_DIGEST = "manifest_sha256"

SCHEMA_VERSION = 2
"""Schema of the stores written; increased whenever an older omstore would misread a newer store."""

READABLE_SCHEMAS = (1, 2)
"""Schemas of the stores read. 2 added row encodings and attribute levels, and changed nothing of 1."""


TOOL_VERSION = "0.1.0"
"""Version of this omstore (that of pyproject.toml), written into every manifest."""


@dataclass(frozen=True)
class Counts:
    """How much a version holds; every count is 64-bit.

    Attributes
    ----------
    num_nodes : int
        Nodes, N.
    num_joint_actions : int
        Joint actions, A.
    num_rows : int
        Rows, N * A.
    num_edges : int
        Successors over all rows, E.
    num_transitions : int
        Transitions of the replay, T; 0 without one.
    """

    num_nodes: int
    num_joint_actions: int
    num_rows: int
    num_edges: int
    num_transitions: int = 0


@dataclass(frozen=True)
class Source:
    """Fingerprint of a file that a version was made from; `name` is relative to the export."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Everything a reader needs to know before it opens an array.

    There are no times in it, nor anything else that differs between two runs on the same input with the same
    options: leave memory budgets and numbers of workers out of `options`.

    Attributes
    ----------
    counts : Counts
        Sizes.
    agents : tuple of str
        Names of the agents, agent 0 first.
    num_actions : tuple of int
        Actions of each agent.
    state : StateCodec
        Width and bits of a state's components.
    rows : mapping
        The row encoding: ``{"encoding": ..., ...}``.
    attributes : mapping
        By name: ``{"level": ..., "path": ..., ...}``.
    replay : mapping
        About the replay; empty without one.
    sources : tuple of Source
        The files it was made from.
    options : mapping
        Options that it was made with.
    notes : tuple of str
        Remarks for people, such as what was left out and why.
    files : mapping of str to FileDigest
        Every file of the version but the manifest, by path relative to the version's folder. Filled by
        publishing.
    tool_version : str
        The omstore that made it.
    schema_version : int
        The schema it follows.
    """

    counts: Counts
    agents: tuple[str, ...]
    num_actions: tuple[int, ...]
    state: StateCodec
    rows: Mapping[str, Any]
    attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    replay: Mapping[str, Any] = field(default_factory=dict)
    sources: tuple[Source, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    files: Mapping[str, FileDigest] = field(default_factory=dict)
    tool_version: str = TOOL_VERSION
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        counts = self.counts
        if counts.num_rows != counts.num_nodes * counts.num_joint_actions:
            raise UsageError(
                f"{counts.num_rows} rows aren't {counts.num_nodes} nodes "
                f"x {counts.num_joint_actions} joint actions"
            )
        if len(self.agents) != len(self.num_actions):
            raise UsageError(f"{len(self.agents)} agents, but actions of {len(self.num_actions)}")

    def with_files(self, files: Mapping[str, FileDigest]) -> Manifest:
        """Give a copy that lists `files`."""
        return replace(self, files=dict(files))

    def to_dict(self) -> dict[str, Any]:
        """Give the JSON form."""
        return {
            "schema_version": self.schema_version,
            "tool_version": self.tool_version,
            "counts": dict(vars(self.counts)),
            "agents": list(self.agents),
            "num_actions": list(self.num_actions),
            "state": {"width": self.state.width, "component_bits": self.state.component_bits},
            "rows": dict(self.rows),
            "attributes": {name: dict(attribute) for name, attribute in self.attributes.items()},
            "replay": dict(self.replay),
            "sources": [dict(vars(source)) for source in self.sources],
            "options": dict(self.options),
            "notes": list(self.notes),
            "files": {path: digest.to_dict() for path, digest in self.files.items()},
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], where: Path) -> Manifest:
        """Read the JSON form; keys it doesn't know are passed over.

        Raises
        ------
        SchemaVersionError
            If the schema is another one.
        CorruptStoreError
            Naming `where`, if a key is missing or its value of the wrong kind.
        """
        schema = document.get("schema_version")
        if type(schema) is not int:
            raise CorruptStoreError(f"{where} has no schema_version; it isn't the manifest of a store")
        if schema not in READABLE_SCHEMAS:
            known = " and ".join(map(str, READABLE_SCHEMAS))
            raise SchemaVersionError(
                f"{where} follows schema {schema}; this omstore reads schemas {known}",
                "Install the omstore that wrote it (see tool_version in the file) or a newer one, "
                "or publish again with this one.",
            )
        try:
            state = document["state"]
            return cls(
                counts=_counts(document["counts"]),
                agents=tuple(_typed(name, str) for name in _typed(document["agents"], list)),
                num_actions=tuple(_typed(count, int) for count in _typed(document["num_actions"], list)),
                state=StateCodec(_typed(state["width"], int), _typed(state["component_bits"], int)),
                rows=_typed(document["rows"], dict),
                attributes={name: _typed(value, dict) for name, value in document["attributes"].items()},
                replay=_typed(document["replay"], dict),
                sources=tuple(
                    Source(
                        _typed(entry["name"], str), _typed(entry["size"], int), _typed(entry["sha256"], str)
                    )
                    for entry in _typed(document["sources"], list)
                ),
                options=_typed(document["options"], dict),
                notes=tuple(_typed(note, str) for note in _typed(document["notes"], list)),
                files={path: _digest(path, entry) for path, entry in document["files"].items()},
                tool_version=_typed(document["tool_version"], str),
                schema_version=schema,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise CorruptStoreError(f"{where} is no complete manifest: {reason}") from error


def _typed(value: Any, kind: type) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{value!r} should be {kind.__name__}")
    return value


def _counts(document: Mapping[str, Any]) -> Counts:
    names = ("num_nodes", "num_joint_actions", "num_rows", "num_edges", "num_transitions")
    counts = [_typed(document[name], int) for name in names]
    if min(counts) < 0:
        raise ValueError("a count is negative")
    return Counts(*counts)


def _digest(path: str, entry: Mapping[str, Any]) -> FileDigest:
    # A path that leaves the version's folder would make `verify` or a copy touch files outside.
    if path.startswith("/") or ".." in path.split("/"):
        raise ValueError(f"{path!r} leaves the version's folder")
    return FileDigest(_typed(entry["size"], int), _typed(entry["sha256"], str))


def _own_digest(document: Mapping[str, Any]) -> str:
    """Digest everything else in a manifest: no other file has its digest, and damage can leave good JSON."""
    rest = {name: value for name, value in document.items() if name != _OWN_DIGEST}
    try:
        return hashlib.sha256(json_bytes(rest)).hexdigest()
    except ValueError:  # Python's JSON reads NaN, which is never written
        return ""


def read_manifest(version_folder: Path) -> Manifest:
    """Read a version's manifest.

    Raises
    ------
    CorruptStoreError
        If it is missing or broken, or isn't what was published.
    SchemaVersionError
        If it follows another schema.
    """
    path = Path(version_folder) / MANIFEST_NAME
    document = load_json(path)
    manifest = Manifest.from_dict(document, path)
    stated = document.get(_OWN_DIGEST)
    if stated is not None and stated != _own_digest(document):
        raise CorruptStoreError(
            f"{path} has other contents than were published (sha256 differs)",
            "Publish again, or `omstore rollback` to an earlier version.",
        )
    return manifest


def write_manifest(version_folder: Path, manifest: Manifest) -> FileDigest:
    """Write and fsync a version's manifest, with its own digest; equal manifests give equal bytes.

    Raises
    ------
    UsageError
        If something in it has no exact JSON form (NaN, an infinity, a numpy scalar).
    """
    try:
        document = manifest.to_dict()
        json_bytes(document)
        data = json_bytes(document | {_OWN_DIGEST: _own_digest(document)})
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"The manifest can't be written as JSON: {error}", "Use Python numbers, and null for NaN."
        ) from error
    return write_file(Path(version_folder) / MANIFEST_NAME, data)
