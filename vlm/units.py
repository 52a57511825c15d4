"""Byte counts as people write and read them: "2 GiB" to a number and back.

Sizes on screen are binary (1 GiB = 2**30 bytes), as memory is sold and limited.
"""

import re

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

_FACTORS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB,
    "k": KIB, "m": MIB, "g": GIB, "t": TIB,
}  # fmt: skip
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """Read "2 GiB", "512M" or "1.5 GB" as a number of bytes. Raises ValueError."""
    match = _SIZE.fullmatch(text)
    factor = _FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f'{text!r} is not a size; write a number of bytes or, say, "2 GiB"')
    return round(float(match[1]) * factor)


def format_bytes(count: int) -> str:
    """Write a number of bytes for people, three digits or so: "512 MiB", "1.46 GiB"."""
    size, unit = float(abs(count)), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1000:
            break
        size, unit = size / 1024, larger
    digits = 0 if unit == "B" or size >= 100 else 1 if size >= 10 else 2
    sign = "-" if count < 0 else ""
    return f"{sign}{size:.{digits}f} {unit}"
