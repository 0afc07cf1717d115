"""Builds: from a transition model, or rows streamed by an exporter, to a published store."""

from omstore.build.options import BuildOptions, BuildReport
from omstore.build.pipeline import build
from omstore.build.writer import GraphWriter, create

__all__ = ["BuildOptions", "BuildReport", "GraphWriter", "build", "create"]
