"""Sizes in bytes, as people write and read them: "64 MB" is 64 000 000 bytes, "64 MiB" is 67 108 864."""

from __future__ import annotations

import re

_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_TEXT = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?i?b)", re.ASCII | re.IGNORECASE)
_STEP = 1000


def size_of(value: object) -> int | None:
    """Return a size as a number of bytes above 0, None if the value is no size."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if value > 0 else None
    found = _TEXT.fullmatch(value.strip()) if isinstance(value, str) else None
    unit = _UNITS.get(found[2].lower()) if found else None
    size = int(float(found[1]) * unit) if found and unit else 0
    return size or None


def size_text(size: int) -> str:
    """Return a number of bytes for people: "64 MB"."""
    number, units = float(size), ["GB", "MB", "KB", "B"]
    while number >= _STEP and len(units) > 1:
        number /= _STEP
        units.pop()
    return f"{number:.2f}".rstrip("0").rstrip(".") + f" {units[-1]}"
