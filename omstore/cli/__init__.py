"""The command line: a thin skin over the library, one file a command."""

from __future__ import annotations

from omstore.cli.main import main

__all__ = ["main"]
