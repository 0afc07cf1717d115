"""From rows to the best row encoding: coordinates, factoring found, attributes hoisted, forecasts, choice, proof."""

from __future__ import annotations

from omstore.encode.attribute_arrays import write_attributes
from omstore.encode.choose import Choice, check_encoding
from omstore.encode.encode import encode_rows
from omstore.encode.forecast import ENCODINGS, Forecast
from omstore.encode.rows_to_encode import EncodedRows, RowsToEncode

__all__ = [
    "ENCODINGS",
    "Choice",
    "EncodedRows",
    "Forecast",
    "RowsToEncode",
    "check_encoding",
    "encode_rows",
    "write_attributes",
]
