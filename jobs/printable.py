"""Text from others, made harmless for a terminal: names of files, cells of tables, messages that contain either.

A terminal obeys control characters: it changes its title, clears lines, or writes text from right to left, so that one
name looks like another one.
"""

from __future__ import annotations

import re

_KEPT = "\t\n"
"""Kept in lines but not in cells, where they would begin lines and columns of the table."""

_CONTROL = "".join(
    (
        r"\x00-\x1f\x7f-\x9f",  # ESC, BEL, CR, backspace, and the eight-bit CSI
        r"\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff",  # direction, and invisible ones
        r"\u2028\u2029\ufff9-\ufffb",  # line and paragraph, annotations
        r"\ud800-\udfff",  # bytes of a name that are no UTF-8
        r"\U000e0000-\U000e007f",
    )
)
_IN_CELLS = re.compile(f"[{_CONTROL}]")
_IN_LINES = re.compile(f"(?![{_KEPT}])[{_CONTROL}]")


def printable(text: str) -> str:
    """Return text with control characters written out, as in `\\x1b`; lines stay lines."""
    return _IN_LINES.sub(_written, text)


def printable_cell(text: str) -> str:
    """Return text for one line of one column: ends of lines and tabs are written out as well."""
    return _IN_CELLS.sub(_written, text)


def printable_json(text: str) -> str:
    """Return the same JSON with control characters in its strings as JSON's escapes."""
    return _IN_LINES.sub(lambda found: "".join(f"\\u{unit:04x}" for unit in _units(found.group())), text)


def _written(found: re.Match[str]) -> str:
    return found.group().encode("unicode_escape", "surrogatepass").decode("ascii")


def _units(character: str) -> list[int]:
    encoded = character.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(encoded[at : at + 2], "big") for at in range(0, len(encoded), 2)]
