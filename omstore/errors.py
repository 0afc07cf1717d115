"""The error tree: grouped by what a handler would do, each also of the builtin kind already caught.

Every message says what happened, where (file, offset, record, field) and, in ``hint``, the next step. The
command line prints ``message`` and ``hint`` and exits with ``exit_code``; a traceback appears only with
``--debug``.
"""

from __future__ import annotations

__all__ = [
    "BadDataError",
    "CorruptStoreError",
    "DiskFullError",
    "ExportNotFoundError",
    "LegacyError",
    "MemoryBudgetError",
    "ModelError",
    "ModelImportError",
    "ModelNotFoundError",
    "NotFactoredError",
    "OmstoreError",
    "ProofError",
    "PublishError",
    "SchemaVersionError",
    "StoreError",
    "StoreNotFoundError",
    "TruncatedPickleError",
    "UnsafePickleError",
    "UnsupportedPickleError",
    "UsageError",
    "WriterBusyError",
]


class OmstoreError(Exception):
    """Base of every error omstore raises on purpose.

    Parameters
    ----------
    message : str
        What happened and where, one or a few lines.
    hint : str, optional
        The next step, such as the option that fixes it.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[type[OmstoreError], tuple[str, str]]:
        return type(self), (self.message, self.hint)


class UsageError(OmstoreError, ValueError):
    """The call itself is off: an unknown option value, an argument out of range, a wrong shape."""

    exit_code = 2


class ExportNotFoundError(OmstoreError, FileNotFoundError):
    """The folder isn't an export, or holds neither pickle nor store."""


class MemoryBudgetError(OmstoreError, MemoryError):
    """The work needs more anonymous memory than the budget allows; says how much."""


class ModelError(OmstoreError, ValueError):
    """A transition model can't be loaded, or answers what no transition model may; names state and action."""


class ModelNotFoundError(ModelError):
    """There is no transition model of this name, or it doesn't take these parameters."""

    exit_code = 2


class ModelImportError(OmstoreError, PermissionError):
    """A store's rows are answered by a model that must be imported, and nobody allowed it."""


class NotFactoredError(OmstoreError, ValueError):
    """Too many rows aren't made of independent components; says how many."""


class DiskFullError(OmstoreError, OSError):
    """The disk is full, or will be; nothing was published and nothing is left behind."""


class LegacyError(OmstoreError):
    """Base of what can be wrong with a legacy pickle."""


class UnsafePickleError(LegacyError, ValueError):
    """The pickle would execute something when unpickled; omstore executes nothing."""


class UnsupportedPickleError(LegacyError, ValueError):
    """A well-formed pickle with something in it that omstore doesn't understand."""


class TruncatedPickleError(LegacyError, EOFError):
    """The pickle ends early or isn't a pickle at all."""


class BadDataError(LegacyError, ValueError):
    """The pickle was read, but its contents don't make a graph or a replay."""


class StoreError(OmstoreError):
    """Base of what can be wrong with a store on disk."""


class StoreNotFoundError(StoreError, FileNotFoundError):
    """No store, or no such version, at the path."""


class CorruptStoreError(StoreError, OSError):
    """A file of the store is missing, truncated, foreign or changed."""


class ProofError(StoreError, ArithmeticError):
    """Rows that were encoded aren't those of their source; nothing is published."""


class SchemaVersionError(StoreError, ValueError):
    """The store was written by a newer (or unknown) schema than this omstore reads."""


class PublishError(StoreError):
    """Publishing failed; the live version is unchanged."""


class WriterBusyError(PublishError, BlockingIOError):
    """Another process is writing to this export's store."""
