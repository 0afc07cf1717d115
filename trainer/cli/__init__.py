"""The `omtrain` command: a thin skin over `trainer.run`."""

from __future__ import annotations

from trainer.cli.main import main

__all__ = ["main"]
