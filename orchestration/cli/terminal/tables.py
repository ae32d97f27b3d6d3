"""Tables and sentences on a terminal and in a pipe: nothing is left out, for any width."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import TextIO

from drainmark.jobs.printable import columns_of, padded

_GAP = "  "
_SHORT = 20
"""Cells of at most this many characters stay on one line, such as numbers, states and times."""
_LEAST = 28
"""Smallest width of a column with longer cells, which are folded into two lines, and not into five."""
_INDENT = "    "
_COMMANDS = re.compile(r"(?:, or:|[:;,]| →) (?=drainmark [a-z])")
"""What joins a command to the words before it."""

Cells = Sequence[str]


def printed_table(heads: Cells, rows: Sequence[Cells]) -> None:
    """Print a table on standard output; a column without a head and without cells is left out.

    In a pipe, a row is a line of columns, without rules. On a terminal that is too narrow, long cells are folded; on a
    still narrower one, they have lines of their own below their row; and if the short ones do not fit either, each cell
    has a line with its name.
    """
    kept = [n for n, head in enumerate(heads) if head or any(row[n] for row in rows)]
    heads, rows = [heads[n] for n in kept], [[row[n] for n in kept] for row in rows]
    if not sys.stdout.isatty():
        sys.stdout.writelines(f"{line}\n" for line in _lines(heads, rows))
        return
    width = shutil.get_terminal_size().columns
    widths = fitted(heads, rows, width)
    if widths is not None and all(
        columns_of(cell) <= 2 * size for row in rows for cell, size in zip(row, widths, strict=True)
    ):
        _draw(heads, rows, widths, width)
    else:
        sys.stdout.writelines(f"{line}\n" for line in _narrow(heads, rows, width))


def sentence(text: str, stream: TextIO) -> str:
    """Return a sentence as a stream shows it: on a terminal, broken between words if it is longer than a line.

    A command has a line of its own there, however long it is, so that it can be copied. A text of several lines, or one
    that is indented, is not changed.
    """
    width = shutil.get_terminal_size().columns
    if not stream.isatty() or columns_of(text) <= width or "\n" in text or text.startswith(" "):
        return text
    first, *commands = _COMMANDS.split(text)
    indent = _INDENT[:2]
    lines = [first] if first.startswith("drainmark ") else _broken(f"{first}{':' if commands else ''}", width, indent)
    return "\n".join((*lines, *(f"{indent}{command}" for command in commands)))


def _broken(text: str, width: int, indent: str) -> list[str]:
    """Return a text as lines, broken between words, those behind the first one indented; a longer word stays whole."""
    lines: list[str] = []
    taken = 0
    for space, word in re.findall(r"(\s*)(\S+)", text):
        size = len(space) + columns_of(word)
        if lines and taken + size <= width:
            lines[-1] += " " * len(space) + word
            taken += size
        else:
            lines.append((indent if lines else " " * len(space)) + word)
            taken = columns_of(lines[-1])
    return lines


def fitted(heads: Cells, rows: Sequence[Cells], width: int) -> list[int] | None:
    """Return widths of columns that fit, None if even the smallest widths do not fit."""
    columns = list(zip(heads, *rows, strict=True))
    wanted = [max(map(columns_of, column)) for column in columns]
    longest = [max(map(columns_of, column[1:]), default=0) for column in columns]
    words = [max(map(columns_of, head.split()), default=0) for head in heads]
    found = [max(word, cell if cell <= _SHORT else _LEAST) for word, cell in zip(words, longest, strict=True)]
    spare = width - sum(found) - len(_GAP) * (len(found) - 1)
    if spare < 0:
        return None
    lacking = sorted(range(len(found)), key=lambda n: wanted[n] - found[n])
    for place, n in enumerate(lacking):
        more = min(wanted[n] - found[n], spare // (len(lacking) - place))
        found[n] += more
        spare -= more
    return found


def _lines(heads: Cells, rows: Sequence[Cells]) -> list[str]:
    widths = [max(map(columns_of, column)) for column in zip(heads, *rows, strict=True)]
    return [_line(cells, widths) for cells in (heads, *rows)]


def _narrow(heads: Cells, rows: Sequence[Cells], width: int) -> Iterator[str]:
    """Yield the lines of a table with long cells below their rows; those of `_records` if the short ones do not fit."""
    is_long = [any(columns_of(row[n]) > _SHORT for row in rows) for n in range(len(heads))]
    short, long = ([n for n, each in enumerate(is_long) if each is wanted] for wanted in (False, True))
    widths = fitted([heads[n] for n in short], [[row[n] for n in short] for row in rows], width) if short else None
    if widths is None:
        yield from _records(heads, rows, width)
        return
    folded = [_broken(heads[n], size, "") or [""] for n, size in zip(short, widths, strict=True)]
    for line in range(max(map(len, folded))):
        yield _line([head[line] if line < len(head) else "" for head in folded], widths)
    yield "─" * width
    for row in rows:
        yield _line([row[n] for n in short], widths)
        for n in long:
            name = f"{heads[n]}: " if heads[n] else ""
            yield from _broken(f"{_INDENT}{name}{row[n]}", width, _INDENT) if row[n] else ()


def _line(cells: Cells, widths: Sequence[int]) -> str:
    return _GAP.join(map(padded, cells, widths)).rstrip()


def _records(heads: Cells, rows: Sequence[Cells], width: int) -> list[str]:
    size = max(map(columns_of, heads))
    rule = "─" * width
    lines = ([f"{padded(h, size)}{_GAP}{c}" for h, c in zip(heads, row, strict=True) if c] for row in rows)
    return [line for of_row in lines for line in (rule, *of_row)]


def _draw(heads: Cells, rows: Sequence[Cells], widths: Sequence[int], width: int) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for head, size in zip(heads, widths, strict=True):
        drawn.add_column(Text(head), width=size, overflow="fold")  # as Text: names in brackets are no markup
    for row in rows:
        drawn.add_row(*map(Text, row))
    Console(width=width, height=len(rows)).print(drawn)  # without a height, rich takes 80 columns for a dumb terminal
