"""Tables on a terminal and in a pipe: no part of a cell is left out, for any width."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

_GAP = "  "
_SHORT = 20
"""Cells of at most this many characters stay on one line, such as numbers, states and times."""
_LEAST = 12
"""Smallest width of a column with longer cells, which are folded."""

Cells = Sequence[str]


def printed_table(heads: Cells, rows: Sequence[Cells]) -> None:
    """Print a table on standard output; a column without a head and without cells is left out.

    In a pipe, a row is a line of columns, without rules. On a terminal that is too narrow, long cells are folded. On a
    still narrower one, a row is printed as lines of names and values.
    """
    kept = [n for n, head in enumerate(heads) if head or any(row[n] for row in rows)]
    heads, rows = [heads[n] for n in kept], [[row[n] for n in kept] for row in rows]
    if not sys.stdout.isatty():
        sys.stdout.writelines(f"{line}\n" for line in _lines(heads, rows))
        return
    width = shutil.get_terminal_size().columns
    widths = fitted(heads, rows, width)
    if widths is None:
        sys.stdout.writelines(f"{line}\n" for line in _records(heads, rows, width))
    else:
        _draw(heads, rows, widths, width)


def fitted(heads: Cells, rows: Sequence[Cells], width: int) -> list[int] | None:
    """Return widths of columns that fit, None if even the smallest widths do not fit."""
    from rich.cells import cell_len

    columns = list(zip(heads, *rows, strict=True))
    wanted = [max(map(cell_len, column)) for column in columns]
    longest = [max(map(cell_len, column[1:]), default=0) for column in columns]
    words = [max(map(cell_len, head.split()), default=0) for head in heads]
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
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in zip(heads, *rows, strict=True)]
    padded = ((cell + " " * (size - cell_len(cell)) for cell, size in zip(row, widths, strict=True)) for row in rows)
    head = (cell + " " * (size - cell_len(cell)) for cell, size in zip(heads, widths, strict=True))
    return [_GAP.join(cells).rstrip() for cells in (head, *padded)]


def _records(heads: Cells, rows: Sequence[Cells], width: int) -> list[str]:
    size = max(map(len, heads))
    rule = "─" * width
    lines = ([f"{h:{size}}{_GAP}{c}" for h, c in zip(heads, row, strict=True) if c] for row in rows)
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
