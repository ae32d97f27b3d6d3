"""A join by event time in plain Python: rows are judged one by one, and rows that are not late are joined as SQL does
over the whole input; nothing here knows groups, states or Spark."""

from __future__ import annotations

import datetime as dt
import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import drainmark as dm

Row = dict[str, Any]
Files = Sequence[Sequence[Row]]
"""Rows have `side` ("l" or "r"), the keys, `n` and `at`."""

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
MINUTE = dt.timedelta(minutes=1)
SIDES = ("l", "r")


@dataclass(frozen=True, kw_only=True)
class Join:
    """One configuration of the join."""

    how: str = "inner"
    low: dt.timedelta = dt.timedelta(0)
    high: dt.timedelta = 10 * MINUTE
    lateness: dt.timedelta = 5 * MINUTE
    max_ahead: dt.timedelta | None = None
    keys: tuple[str, ...] = ("user", "x")

    def declare(self, left: Any, right: Any, name: str = "met") -> Any:
        """Declare the join over two streams with the columns `ln` and `lat`, `rn` and `rat`, and the keys."""
        return dm.join(
            left, right, on=list(self.keys), within=(self.low, self.high), left_time="lat", right_time="rat",
            lateness=self.lateness, max_ahead=self.max_ahead, how=self.how, name=name,
        )  # fmt: skip


@dataclass(frozen=True)
class Told:
    """The emitted rows and each side's late rows, by number of the file; the number of rows that each side keeps."""

    emitted: dict[int, list[Row]] = field(default_factory=lambda: defaultdict(list))
    late: dict[str, dict[int, list[Row]]] = field(default_factory=lambda: {side: defaultdict(list) for side in SIDES})
    kept: dict[str, int] = field(default_factory=dict)


def told_by(join: Join, files: Files) -> Told:
    """Return the result of a join, computed in plain Python."""
    told = Told()
    marks = {side: marks_of(join, files, side) for side in SIDES}
    fit: dict[str, list[tuple[int, Row]]] = {side: [] for side in SIDES}
    for number, rows in enumerate(files):
        for row in rows:
            side, mark = row["side"], marks[row["side"]][number]
            if row["at"] is None or (mark is not None and row["at"] < mark):
                told.late[side][number].append(shown(row, join.keys))
            else:
                fit[side].append((number, row))
    met: dict[str, set[int]] = {side: set() for side in SIDES}
    for (a, (of_left, left)), (b, (of_right, right)) in itertools.product(enumerate(fit["l"]), enumerate(fit["r"])):
        if same_keys(left, right, join.keys) and join.low <= right["at"] - left["at"] <= join.high:
            told.emitted[max(of_left, of_right)].append({**shown(left, join.keys), **shown(right, join.keys)})
            met["l"].add(a)
            met["r"].add(b)
    for side, other, access in (("l", "r", join.high), ("r", "l", -join.low)):
        leaves = [leaves_at(number, row, join.keys, access, marks[other]) for number, row in fit[side]]
        told.kept[side] = sum(at is None for at in leaves)
        is_outer = join.how in ("full", {"l": "left", "r": "right"}[side])
        for index, at in enumerate(leaves):
            if is_outer and at is not None and index not in met[side]:
                nothing = {f"{one}{name}": None for one in SIDES for name in ("n", "at")}
                told.emitted[at].append(nothing | shown(fit[side][index][1], join.keys))
    return told


def marks_of(join: Join, files: Files, side: str) -> list[dt.datetime | None]:
    """Return the watermark of a side before each file, and after the last."""
    marks: list[dt.datetime | None] = [None]
    for rows in files:
        times = [row["at"] - join.lateness for row in rows if row["side"] == side and row["at"] is not None]
        stands = marks[-1]
        if stands is not None and join.max_ahead is not None:
            times = [min(time, stands + join.max_ahead) for time in times]
        marks.append(max([*times, *([stands] if stands is not None else [])], default=None))
    return marks


def shown(row: Row, keys: Sequence[str]) -> Row:
    side = row["side"]
    return {**{key: row[key] for key in keys}, f"{side}n": row["n"], f"{side}at": row["at"]}


def same_keys(left: Row, right: Row, keys: Sequence[str]) -> bool:
    """Say whether the keys are equal as in SQL: null equals nothing, NaN equals NaN, and 0.0 equals -0.0."""
    return all(
        left[key] is not None and (left[key] == right[key] or (left[key] != left[key] and right[key] != right[key]))
        for key in keys
    )


def leaves_at(number: int, row: Row, keys: Sequence[str], access: dt.timedelta, marks: list[Any]) -> int | None:
    """Return the file after which no partner can come; None if one still can. `marks[i]` is the mark before file i."""
    if any(row[key] is None for key in keys):
        return number
    for later in range(number, len(marks) - 1):
        if marks[later + 1] is not None and marks[later + 1] > row["at"] + access:
            return later
    return None


def plain(rows: Sequence[Row]) -> list[str]:
    """Return rows in a form to compare: without positions, with NaN and -0.0 as texts."""
    return sorted(
        repr(sorted((name, str(value + 0.0 if value.__class__ is float else value)) for name, value in row.items()
                    if name not in ("_position", "_sequence_id")))
        for row in rows
    )  # fmt: skip
