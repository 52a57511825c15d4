"""Byte counts in words, both ways."""

import pytest

from vlm.units import GIB, format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("123", 123),
        ("2 GiB", 2 * GIB),
        ("2gib", 2 * GIB),
        (" 1.5 G ", 3 * GIB // 2),
        ("1 GB", 10**9),
        ("512M", 512 * 2**20),
        ("7 b", 7),
    ],
)
def test_sizes_are_read(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e9", "2 GiX", "1,5 GiB", "1 2", "nan"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (1536, "1.50 KiB"),
        (12 * GIB, "12.0 GiB"),
        (375 * GIB, "375 GiB"),
        (3000 * GIB, "2.93 TiB"),
        (-2 * GIB, "-2.00 GiB"),
    ],
)
def test_sizes_are_written_for_people(count: int, text: str) -> None:
    assert format_bytes(count) == text
