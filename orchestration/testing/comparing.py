"""Rows in a form that is equal between runs: multisets, places of files instead of ids, floats with nine digits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drainmark.jobs.formats.values.far_times import python_rows
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.protocol.records.manifest import TableRole
from drainmark.jobs.state.placed_rows import FROM

if TYPE_CHECKING:
    from drainmark.orchestration.workplace.workplace import Workplace

Rows = Counter[str]
NOW = "now"
_SHOWN = 5
_LAST = {"id", "value"}
"""The fields that `dm.first` and `dm.last` keep for a value."""
_BY_ID = (TableRole.UPSERT, TableRole.OVERWRITE)


def multiset(
    rows: Sequence[Mapping[str, Any]], places: Mapping[int, int] | None = None, *, is_state: bool = False
) -> Rows:
    """Return rows as a multiset of texts.

    Args:
        places: sequence id -> place of its file, from 1; None leaves the ids out. An id without a place is marked.
        is_state: the rows are of an operator's state, in which hidden columns may hold ids: those of `dm.last`, and of
            rows that wait.
    """
    return Counter(_text(row, places, is_state=is_state) for row in rows)


def differences(wanted: Rows, found: Rows) -> list[str]:
    """Return lines to print if two multisets differ, with a few rows of each side; none if they are equal."""
    missing, surplus = wanted - found, found - wanted
    if not missing and not surplus:
        return []
    lines = [f"{missing.total()} missing and {surplus.total()} surplus, of {wanted.total()} expected rows"]
    for sign, rows in (("-", missing), ("+", surplus)):
        lines += [f"  {sign} {count} x {text}" for text, count in sorted(rows.items())[:_SHOWN]]
    return lines


@dataclass(frozen=True, slots=True)
class Tables:
    """Every table of a region at every state in force, comparable between runs.

    Attributes:
        rows: (table, place of the file, or `NOW` for the rows that readers see) -> rows.
    """

    rows: Mapping[tuple[str, int | str], Rows]

    @classmethod
    def of(cls, workplace: Workplace, region: str) -> Tables:
        """Read all tables: as readers see them, and upsert and overwrite sinks also as of every id.

        Rows of the other tables have the places of their files, so these tables need no reading as of every id.
        """
        from drainmark.resources.checkpoints.as_of import RegionReader

        reader = RegionReader(workplace.settings, region)
        places = {number: place for place, number in enumerate(sorted(reader.history.states), 1)}
        rows: dict[tuple[str, int | str], Rows] = {}
        for table in reader.history.tables:
            is_state = table.role is TableRole.CHANGES
            rows[table.name, NOW] = multiset(python_rows(reader.visible(table.name)), places, is_state=is_state)
            for number, place in places.items() if table.role in _BY_ID else ():
                rows[table.name, place] = multiset(python_rows(reader.as_of(table.name, number)), places)
        return cls(rows)

    def unequal_to(self, golden: Tables, files: Sequence[str]) -> Iterator[str]:
        """Yield a paragraph for each table and state that differs from the golden run."""
        for table, place in golden.rows:
            found = differences(golden.rows[table, place], self.rows.get((table, place), Counter()))
            if found:
                when = "as readers see it" if place == NOW else f"after file {place}, {files[int(place) - 1]}"
                yield "\n".join([f"{table} {when}: {found[0]}", *found[1:]])


def _text(row: Mapping[str, Any], places: Mapping[int, int] | None, *, is_state: bool) -> str:
    plain = {name: _plain(row[name]) for name in sorted(row) if name != SEQUENCE_ID}
    if places is not None and is_state:
        hidden = [name for name in plain if name.startswith("_")]
        plain |= {name: _with_places(plain[name], places) for name in hidden}
        if isinstance(plain.get(FROM), int):
            plain[FROM] = _place(plain[FROM], places)
    if places is not None and SEQUENCE_ID in row:
        plain["file"] = _place(row[SEQUENCE_ID], places)
    return repr(plain)


def _place(number: int, places: Mapping[int, int]) -> int | str:
    return places.get(number, f"none: id {number} is not in force")


def _with_places(value: Any, places: Mapping[int, int]) -> Any:
    """Return a value with places instead of the ids in its structs."""
    if isinstance(value, list):
        return [_with_places(item, places) for item in value]
    if not isinstance(value, Mapping):
        return value
    ids = (SEQUENCE_ID, "id") if set(value) == _LAST else (SEQUENCE_ID,)  # kept rows may have a column `id`
    return {
        name: _place(item, places) if name in ids and isinstance(item, int) else _with_places(item, places)
        for name, item in value.items()
    }


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
