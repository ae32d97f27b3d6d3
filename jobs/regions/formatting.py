"""Plans as words and columns."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING

from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.operators.sources.source import SlicedSource
from drainmark.jobs.printable import columns_of, padded

if TYPE_CHECKING:
    from drainmark.jobs.regions.plan import RegionPlan


def columns(rows: Sequence[Sequence[str]], *, indent: int) -> list[str]:
    """Return rows as lines of columns; a column that is empty everywhere is left out."""
    widths = [max(map(columns_of, column)) for column in zip(*rows, strict=True)]
    shown = [index for index, size in enumerate(widths) if size]
    return [(" " * indent + "  ".join(padded(row[i], widths[i]) for i in shown)).rstrip() for row in rows]


def names(operators: Sequence[Operator]) -> list[str]:
    return [operator.name for operator in operators]


def duration(value: dt.timedelta) -> str:
    return f"{value.total_seconds():g} s"


def seconds(value: dt.timedelta | None) -> float | None:
    return value.total_seconds() if value is not None else None


def trigger_noun(region: RegionPlan) -> str:
    """Return the word for the triggers of a region; those of a periodic one are slices, also of files."""
    return "slice" if region.parameters.period is not None else input_noun(region)


def input_noun(region: RegionPlan) -> str:
    """Return the word for what a scan of a region finds: file, or slice, or trigger if its starts have both."""
    kinds = {"slice" if isinstance(start, SlicedSource) else "file" for start in region.starts}
    return kinds.pop() if len(kinds) == 1 else "trigger"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 file`, `2 files`."""
    ending = "es" if noun.endswith("ch") else "s"
    return f"{number} {noun}{'' if number == 1 else ending}"


def said_of(number: int, noun: str, many: str, one: str) -> str:
    """Return a number with its noun and its verb: `2 files are`, `1 file is`."""
    return f"{counted(number, noun)} {one if number == 1 else many}"
