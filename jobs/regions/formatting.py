"""Plans as words and columns."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from drainmark.jobs.graph.operator import Operator


def columns(rows: Sequence[Sequence[str]], *, indent: int) -> list[str]:
    """Return rows as lines of columns; a column that is empty everywhere is left out."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    shown = [index for index, width in enumerate(widths) if width]
    return [(" " * indent + "  ".join(row[i].ljust(widths[i]) for i in shown)).rstrip() for row in rows]


def names(operators: Sequence[Operator]) -> list[str]:
    return [operator.name for operator in operators]


def duration(value: dt.timedelta) -> str:
    return f"{value.total_seconds():g} s"


def seconds(value: dt.timedelta | None) -> float | None:
    return value.total_seconds() if value is not None else None


def counted(number: int, noun: str) -> str:
    ending = "es" if noun.endswith("ch") else "s"
    return f"{number} {noun}{'' if number == 1 else ending}"
