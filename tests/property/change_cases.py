"""Change logs, what they lead to in plain Python, and an operator that goes through them without a region.

The oracles know a dictionary of last changes, and a list of intervals for each key; nothing of Spark, groups or states.
"""

from __future__ import annotations

import datetime as dt
import random
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

import drainmark as dm
from drainmark.jobs.frames.arrow import arrow_of, frame_of
from drainmark.jobs.frames.tags import GONE, POSITION, SEQUENCE_ID
from drainmark.jobs.graph.context import Fit, OperatorContext
from drainmark.jobs.state.keyed_rows import RowsPerKey, last_per_key, present

Row = dict[str, Any]
Files = list[list[Row]]
Key = tuple[Any, ...]
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)

SCHEMA = pa.schema(
    [("a", pa.string()), ("b", pa.int64()), ("n", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("op", pa.string()),
     ("x", pa.int64()), ("y", pa.float64())]
)  # fmt: skip
PLACE = pa.struct([("block", pa.int64()), ("row", pa.int64())])


def log(chance: random.Random, files: int, *, truncates: float = 0.0, bad: float = 0.05, keys: int = 4) -> Files:
    """Return files of changes: out of order, with ties, duplicates, replayed files, deletes, and rows without key."""
    made: Files = []
    now = 0
    for _ in range(files):
        if made and chance.random() < 0.15:
            made.append([dict(row) for row in chance.choice(made)])  # a file is delivered again
            continue
        rows: list[Row] = []
        for _ in range(chance.choice([0, 1, 2, 3, 6])):
            now += chance.choice([0, 1, 1, 2])
            n = max(0, now - chance.choice([0, 0, 0, 1, 3, 8]))
            row: Row = {
                "a": chance.choice("pq"), "b": chance.randrange(keys // 2), "n": n,
                "at": NOON + dt.timedelta(minutes=n), "op": chance.choice("uuud"), "x": chance.randrange(3),
                "y": chance.choice([0.5, 1.5, None]),
            }  # fmt: skip
            if chance.random() < truncates:
                row |= {"op": "t", "a": None, "b": None}
            if chance.random() < bad:
                row |= chance.choice([{"a": None}, {"b": None}, {"n": None, "at": None}])
            rows.append(row)
            if chance.random() < 0.15:
                rows.append(dict(row))
        made.append(rows)
    return made


def is_bad(row: Row) -> bool:
    return row["n"] is None or (row["op"] != "t" and (row["a"] is None or row["b"] is None))


@dataclass
class Dictionary:
    """The newest rows by key, and what is remembered: sequences of each key's last change, and of the last truncate."""

    last: dict[Key, tuple[int, Row | None]] = field(default_factory=dict)
    truncated: int = -1

    def take(self, row: Row) -> None:
        if row["op"] == "t":
            if row["n"] >= self.truncated:
                self.truncated = row["n"]
                self.last = {key: known for key, known in self.last.items() if known[0] > row["n"]}
            return
        key, n = (row["a"], row["b"]), row["n"]
        if n >= self.truncated and (key not in self.last or n >= self.last[key][0]):
            self.last[key] = (n, None if row["op"] == "d" else row)

    def rows(self) -> dict[Key, Row]:
        return {key: row for key, (_, row) in self.last.items() if row is not None}


@dataclass
class Forgetful(Dictionary):
    """The same, but deletes are forgotten at the end of a trigger; `deleted` has their times."""

    within: int | dt.timedelta = 0
    trigger: int = 0
    newest: dt.datetime | None = None
    deleted: dict[Key, Any] = field(default_factory=dict)

    def take(self, row: Row) -> None:
        super().take(row)
        key = (row["a"], row["b"])
        if key in self.last and self.last[key][0] == row["n"]:
            is_time = isinstance(self.within, dt.timedelta)
            self.deleted[key] = row["at"] if is_time else self.trigger

    def end(self, rows: list[Row]) -> None:
        self.newest = max([row["at"] for row in rows] + ([self.newest] if self.newest else []), default=None)
        for key, (_, row) in list(self.last.items()):
            if row is not None:
                continue
            if isinstance(self.within, dt.timedelta):
                is_over = self.newest is not None and self.deleted[key] + self.within <= self.newest
            else:
                is_over = self.trigger - self.deleted[key] > self.within
            if is_over:
                del self.last[key]
        self.trigger += 1


def newest(files: Files, columns: Sequence[str], within: int | dt.timedelta | None = None) -> list[list[Row]]:
    """Return the rows that each file takes back and brings, for type 1."""
    table = Dictionary() if within is None else Forgetful(within=within)
    out = []
    for rows in files:
        before = {key: shown(row, columns) for key, row in table.rows().items()}
        good = [row for row in rows if not is_bad(row)]
        for row in good:
            table.take(row)
        if isinstance(table, Forgetful):
            table.end(good)
        out.append(differences(before, {key: shown(row, columns) for key, row in table.rows().items()}))
    return out


def versions(files: Files, columns: Sequence[str], tracked: Sequence[str]) -> list[list[Row]]:
    """Return the versions that each file takes back and brings, for type 2."""
    changes: dict[Key, dict[int, Row]] = defaultdict(dict)
    out, before = [], dict[Key, Row]()
    for rows in files:
        for row in rows:
            if not is_bad(row):
                changes[row["a"], row["b"]][row["n"]] = row
        after = {
            (*key, version["valid_from"]): version
            for key, mine in changes.items()
            for version in intervals([mine[n] for n in sorted(mine)], columns, tracked)
        }
        out.append(differences(before, after))
        before = after
    return out


def intervals(changes: list[Row], columns: Sequence[str], tracked: Sequence[str]) -> list[Row]:
    found: list[Row] = []
    open_row: Row | None = None
    for row in changes:
        if open_row is not None and row["op"] != "d" and all(open_row[name] == row[name] for name in tracked):
            found[-1] |= shown(row, columns)
            open_row = row
            continue
        if open_row is not None:
            found[-1] |= {"valid_to": row["n"], "is_current": False}
        open_row = None if row["op"] == "d" else row
        if open_row is not None:
            found.append({**shown(row, columns), "valid_from": row["n"], "valid_to": None, "is_current": True})
    return found


def shown(row: Row, columns: Sequence[str]) -> Row:
    return {name: row[name] for name in columns}


def differences(before: dict[Key, Row], after: dict[Key, Row]) -> list[Row]:
    lost = [{**row, GONE: True} for key, row in before.items() if after.get(key) != row]
    return lost + [{**row, GONE: False} for key, row in after.items() if before.get(key) != row]


def net_of(rows: Sequence[Row], keys: Sequence[str]) -> list[Row]:
    """Return of each id and key the row that an upsert sink keeps: the new one, or else the one that is gone."""
    last = {}
    for row in sorted(rows, key=lambda row: not row[GONE]):
        key = repr([row[name] for name in (SEQUENCE_ID, *keys)])
        last[re.sub(r"-0\.0\b", "0.0", key)] = row
    return list(last.values())


def plain(rows: Sequence[Row]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)


@dataclass
class Course:
    """An operator with its states, which goes through files in groups of any sizes.

    Attributes:
        kept: by part of the state, all of its changes.
        out: by id, the rows that the operator gave.
        refused: by id, the number of rows for the quarantine.
        is_local: the process applies the changes itself, else tasks do.
    """

    session: Any
    operator: Any
    schema: pa.Schema = SCHEMA
    kept: dict[str, list[pa.Table]] = field(default_factory=lambda: defaultdict(list))
    out: dict[int, list[Row]] = field(default_factory=lambda: defaultdict(list))
    refused: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    made: dict[Any, Any] = field(default_factory=dict)
    is_local: bool = True

    def go(self, files: dict[int, list[Row]]) -> None:
        """Process files by id as one group."""
        rows = pa.concat_tables([_table(number, rows, self.schema) for number, rows in files.items()])
        frames = OperatorContext(
            session=self.session, params=dm.Params(), first_id=min(files), last_id=max(files), scanned_frames={},
            streams={"changes": frame_of(self.session, rows)}, own_places={"changes"}, is_run=True, made=self.made,
            read_state=lambda operator, partials: (partials, None), read_lookup=lambda operator: None,
            read_statement=lambda name: "", read_kept=self._known, materialise=self._once,
            few=lambda operator: self.is_local, read_kept_rows=self._known_rows,
        )  # fmt: skip
        result = self.operator.step(frames)
        assert bool(result.changed_rows) == self.is_local
        changes = {part: arrow_of(frame) for part, frame in result.changes.items()} | dict(result.changed_rows)
        output = arrow_of(result.output).to_pylist()
        assert plain(arrow_of(result.net.rows).to_pylist()) == plain(net_of(output, result.net.keys))
        for row in output:
            self.out[row.pop(SEQUENCE_ID)].append(row)
        for row in arrow_of(result.refused).to_pylist() if result.refused is not None else ():
            self.refused[row[SEQUENCE_ID]] += 1
        for part, rows in changes.items():
            self.kept[part].append(rows)

    def _once(self, operator: Any, frame: Any) -> Any:
        return frame_of(self.session, arrow_of(frame), frame.schema)

    def _known(self, operator: Any, part: str, changed: Any, due: Any, fit: Fit) -> Any:
        found = self.kept[part]
        if not found:
            return None
        (kept,) = (kept for kept in self.operator.kept if kept.part == part)
        per_key = RowsPerKey(kept.keys, gone=kept.gone)
        table = pa.concat_tables(found)
        frame = frame_of(self.session, table if fit is Fit.RAW else per_key.last(table))
        return frame if changed is None or due is not None else per_key.matching(frame, changed)

    def _known_rows(self, operator: Any, part: str, keys: pa.Table) -> pa.Table | None:
        return pa.concat_tables(self.kept[part]) if self.kept[part] else None

    def rewind(self, to: int) -> None:
        """Take back everything above an id."""
        import pyarrow.compute as pc

        for part, tables in self.kept.items():
            self.kept[part] = [table.filter(pc.less_equal(table[SEQUENCE_ID], to)) for table in tables]
        for number in [number for number in self.out if number > to]:
            del self.out[number]


def shown_by(course: Course, at: int) -> list[str]:
    """Return the rows of the table whose history is the state, as of an id: the last row of each key that is there."""
    import pyarrow.compute as pc

    rows = pa.concat_tables(course.kept[""])
    rows = rows.filter(pc.less_equal(rows[SEQUENCE_ID], at))
    found = present(last_per_key(rows, course.operator.kept[0].history_of))
    return plain(found.select([name for name in found.column_names if not name.startswith("_")]).to_pylist())


def _table(number: int, rows: list[Row], schema: pa.Schema) -> pa.Table:
    table = pa.Table.from_pylist(rows, schema)
    places = pa.array([{"block": 0, "row": i} for i in range(len(rows))], PLACE)
    ids = pa.array([number] * len(rows), pa.int64())
    return table.append_column(SEQUENCE_ID, ids).append_column(POSITION, places)
