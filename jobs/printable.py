"""Text from others, made harmless where it is shown: names of files, values, and messages that contain either.

A terminal obeys control characters: it changes its title, clears lines, or writes text from right to left, so that one
name looks like another one. A page that renders Markdown loads the images and offers the links in it. A shell expands
what somebody pastes. `orchestration/dagster_assets/__init__.py` lists what Dagster renders; HTML has
`orchestration/html_report/page_text.py`.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from typing import Any

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

_PROSE = re.compile(
    r"(?=[^\W_])(?!\d+[.)])"  # a sign, or a number with a point, could begin a list
    r"(?:[^\W_]|[ ,;:()'’%…→]"
    r"|(?<=[^\W_])-(?=[^\W_])"
    r"|(?<!www)\.(?= |$)"  # a point within a word makes `www.name.com` a link
    r"|(?<=\d)\.+(?=\d))+",
    re.IGNORECASE,
)
"""Text without any character that means something in Markdown."""


def printable(text: str) -> str:
    """Return text with control characters written out, as in `\\x1b`; lines stay lines."""
    return _IN_LINES.sub(_written, text)


def printable_cell(text: str) -> str:
    """Return text for one line of one column: ends of lines and tabs are written out as well."""
    return _IN_CELLS.sub(_written, text)


def columns_of(text: str) -> int:
    """Return how many columns of a terminal a text takes: a wide letter and an emoji two, a combining mark none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def padded(text: str, columns: int) -> str:
    """Return a text with spaces behind it, so that it takes so many columns of a terminal."""
    return text + " " * (columns - columns_of(text))


def printable_json(text: str) -> str:
    """Return the same JSON with control characters in its strings as JSON's escapes."""
    return _IN_LINES.sub(lambda found: "".join(f"\\u{unit:04x}" for unit in _units(found.group())), text)


def markdown(text: str) -> str:
    """Return Markdown that shows this very text: prose as it is, other lines as a code span, several as a block.

    In code, nothing is a link, an image, HTML or an entity; escaped text would be, because GitHub's Markdown, which
    Dagster uses, looks for addresses in text after it has removed the escapes.
    """
    text = printable(text)
    if "\n" in text:
        return markdown_block(text)
    return text if _PROSE.fullmatch(text) else _code(text)


def markdown_block(text: str) -> str:
    """Return Markdown that shows lines as they are, in a block of code."""
    text = printable(text)
    fence = "`" * max(3, _longest_ticks(text) + 1)
    return f"{fence}text\n{text}\n{fence}"


def markdown_code(text: str) -> str:
    """Return Markdown that shows a name or a command as code, on one line, in a sentence or a cell of a table."""
    # Renderers disagree on `\\|` in a cell. An entity ends no cell, but is none in code: so `|` stands between spans.
    return "&#124;".join(map(_code, printable_cell(text).split("|")))


def shell_word(text: str) -> str:
    """Return text as one word for a shell, on one line: pasted, it is this very text, and nothing in it is expanded."""
    if not _IN_CELLS.search(text):
        return shlex.quote(text)
    others = re.sub(r"[\\'!]", _octal, text)  # `!` is expanded by an interactive shell
    return f"$'{_IN_CELLS.sub(_octal, others)}'"


def _code(text: str) -> str:
    if not text:
        return ""
    ticks = "`" * (_longest_ticks(text) + 1)
    # A renderer takes one space away on each side, if there is other text as well.
    room = " " if text.strip(" ") and (text[0] in "` " or text[-1] in "` ") else ""
    return f"{ticks}{room}{text}{room}{ticks}"


def _longest_ticks(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def _octal(found: re.Match[str]) -> str:
    character = found.group()
    is_byte = "\udc80" <= character <= "\udcff"  # of a name that is no UTF-8
    encoded = character.encode(errors="surrogateescape" if is_byte else "surrogatepass")
    return "".join(f"\\{byte:03o}" for byte in encoded)


def _written(found: re.Match[str]) -> str:
    return found.group().encode("unicode_escape", "surrogatepass").decode("ascii")


def _units(character: str) -> list[int]:
    encoded = character.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(encoded[at : at + 2], "big") for at in range(0, len(encoded), 2)]


def without_nan(value: Any) -> Any:
    """Return a value with texts in place of the numbers that JSON does not have, as Spark writes them."""
    if isinstance(value, Mapping):
        return {name: without_nan(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
