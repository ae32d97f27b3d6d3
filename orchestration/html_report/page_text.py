"""Texts on a page: short numbers and times, and names of users and files, escaped for HTML."""

from __future__ import annotations

from html import escape
from typing import Any

from drainmark.jobs.printable import printable_cell

_SPANS = ((86400.0 * 365, "a"), (86400.0, "d"), (3600.0, "h"), (60.0, "min"))
_SIZES = ("B", "kB", "MB", "GB", "TB", "PB")
NOTHING = "–"
_LONGEST = 64
"""Characters of a file that are shown."""


def shown(value: Any) -> str:
    """Return any text for HTML: control characters are written out, markup and quotes are escaped."""
    return escape(printable_cell(str(value)), quote=True)


def count_text(value: float | None) -> str:
    """Return a count with commas between thousands."""
    return NOTHING if value is None else f"{value:,.0f}"


def rate_text(value: float | None) -> str:
    """Return a count per second, with decimal digits if it is below 10."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def seconds_text(value: float | None) -> str:
    """Return a duration in the largest unit in which it is at least 1."""
    if value is None:
        return NOTHING
    for size, unit in _SPANS:
        if value >= size:
            number = value / size
            return f"{number:.0f} {unit}" if number >= 10 else f"{number:.1f} {unit}"
    if not value:
        return "0"
    if value >= 0.995:
        return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"
    return f"{value * 1000:.0f} ms"


def bytes_text(value: float | None) -> str:
    """Return a size in decimal units."""
    if value is None:
        return NOTHING
    power = 0
    while value >= 999.5 and power < len(_SIZES) - 1:
        value, power = value / 1000, power + 1
    return f"{value:.0f} {_SIZES[power]}" if value >= 10 or not power else f"{value:.1f} {_SIZES[power]}"


def time_text(moment: str | None) -> str:
    """Return a time of a report, in UTC, to the second."""
    return NOTHING if moment is None else moment[:19].replace("T", " ")


def file_text(uri: str | None, folder: str | None) -> str:
    """Return HTML of a file: its path below the source's folder, cut to its end if it is long; the uri is the title."""
    if uri is None:
        return ""
    short = uri.removeprefix(f"{folder.rstrip('/')}/") if folder else uri
    cut = short if len(short) <= _LONGEST else f"…{short[-_LONGEST:]}"
    return f'<span class="file" title="{shown(uri)}">{shown(cut)}</span>'
