"""Sizes as people write them, and memory as the kernel counts it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from omstore.errors import UsageError
from omstore.memory import format_bytes, parse_bytes

MIB = 1 << 20


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("512M", 512 * MIB),
        ("512 MiB", 512 * MIB),
        ("512mb", 512 * MIB),
        ("1.5G", 1536 * MIB),
        ("3k", 3072),
        ("2T", 2 << 40),
        (" 17 B ", 17),
        (99, 99),
    ],
)
def test_sizes_are_read(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "M", "much", "-1", "1.2.3", "1e9", "5X", "1 2"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="isn't a size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1_500_000, "1.4 MiB"),
        (123 * MIB, "123 MiB"),
        (15.9 * (1 << 30), "15.9 GiB"),
        (1 << 50, "1024 TiB"),
    ],
)
def test_sizes_are_written(size: float, text: str) -> None:
    assert format_bytes(size) == text


ALLOCATE = """
import pathlib, sys
import numpy as np
from omstore.memory import PeakMemory, memory_use

path = pathlib.Path(sys.argv[1])
path.write_bytes(bytes(64 << 20))
before = memory_use()
mapped = np.memmap(path, np.uint8, "r")
assert mapped.sum() == 0
after_map = memory_use()
assert after_map.file_backed - before.file_backed > 60 << 20, (before, after_map)
assert after_map.anonymous - before.anonymous < 8 << 20, (before, after_map)
with PeakMemory(interval=0.001) as peak:
    own = np.ones(64 << 20, np.uint8)
    peak.sample()
    after_own = memory_use()
    del own
assert after_own.anonymous - after_map.anonymous > 60 << 20, (after_map, after_own)
assert peak.anonymous >= after_own.anonymous, (peak.anonymous, after_own)
"""


def test_anonymous_and_mapped_memory_are_told_apart(tmp_path: Path) -> None:
    # In a process of its own: a larger heap may serve the array from memory that is resident already.
    subprocess.run([sys.executable, "-c", ALLOCATE, str(tmp_path / "file")], check=True)
