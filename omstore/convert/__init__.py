"""Conversion of legacy pickles into a published store."""

from omstore.convert.options import ConvertOptions, ConvertReport
from omstore.convert.pipeline import convert

__all__ = ["ConvertOptions", "ConvertReport", "convert"]
