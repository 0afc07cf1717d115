"""Sizes as people write them, and memory as the kernel counts it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from omstore.errors import UsageError
from omstore.memory import PeakMemory, format_bytes, memory_use, parse_bytes

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


def test_anonymous_and_mapped_memory_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(64 * MIB))
    before = memory_use()
    mapped = np.memmap(path, np.uint8, "r")
    assert mapped.sum() == 0
    after_map = memory_use()
    assert after_map.file_backed - before.file_backed > 60 * MIB
    assert after_map.anonymous - before.anonymous < 8 * MIB
    own = np.ones(64 * MIB, np.uint8)
    after_own = memory_use()
    assert after_own.anonymous - after_map.anonymous > 60 * MIB
    assert own.sum() == 64 * MIB


def test_the_peak_is_remembered() -> None:
    before = memory_use()
    with PeakMemory(interval=0.001) as peak:
        block = np.ones(64 * MIB, np.uint8)
        peak.sample()
        del block
    assert peak.anonymous - before.anonymous > 60 * MIB
