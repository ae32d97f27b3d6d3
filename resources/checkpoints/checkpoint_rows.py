"""Rows of a checkpoint table as columns of Parquet, and back; rows of small files are kept.

`jobs/protocol/records/checkpoint_row.py` defines their meaning.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import FormatTooNew
from drainmark.jobs.printable import printable_json
from drainmark.jobs.protocol.records.checkpoint_row import FORMAT_VERSION, CheckpointRow, RowKind
from drainmark.resources.storage.folder import Folder, traits

if TYPE_CHECKING:
    import pyarrow as pa

POSITION_COLUMN = "_position"
"""`Delta version * 2**20 + place in the commit`: rows in this order are in commit order.

A commit lands at exactly the version after the one that was checked, or not at all, so the number is known before.
"""

POSITION_BITS = 20
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_TIME_COLUMN = "recorded_at"
_LONGS = {
    *("epoch", "sequence_id", "trigger_order", "group_first", "group_last", "rows_in", "bytes_in"),
    POSITION_COLUMN,
}
_TYPES = {
    **dict.fromkeys(_LONGS, "long"),
    "format_version": "integer",
    _TIME_COLUMN: "timestamp",
    "drain_seconds": "double",
    "checkpoint_seconds": "double",
}
_JSON_COLUMNS = ("trigger_identity", "detail")
_COLUMNS = (*(field.name for field in fields(CheckpointRow)), POSITION_COLUMN)


def schema_json() -> str:
    """Return the columns as Spark and Delta write them."""
    columns = [
        {"name": name, "type": _TYPES.get(name, "string"), "nullable": True, "metadata": {}} for name in _COLUMNS
    ]
    return json.dumps({"type": "struct", "fields": columns})


def arrow_schema() -> pa.Schema:
    """Return the columns as Arrow has them."""
    import pyarrow as pa

    types = {
        "long": pa.int64(),
        "integer": pa.int32(),
        "double": pa.float64(),
        "string": pa.string(),
        "timestamp": pa.timestamp("us", tz="UTC"),
    }
    return pa.schema([(name, types[_TYPES.get(name, "string")]) for name in _COLUMNS])


def arrow_table(rows: Sequence[CheckpointRow], position: int) -> pa.Table:
    """Return the rows of a commit as a table; the first row gets `position`, the next ones follow."""
    import pyarrow as pa

    values = [_values(row) | {POSITION_COLUMN: position + place} for place, row in enumerate(rows)]
    return pa.Table.from_pylist(values, schema=arrow_schema())


def placed_rows(table: pa.Table, where: str) -> list[tuple[int, CheckpointRow]]:
    """Return rows with their positions, in the order of the table.

    Args:
        where: name of the checkpoint table in the error.

    Raises:
        FormatTooNew: a row was written by a newer Drainmark.
    """
    import pyarrow as pa

    place = table.schema.get_field_index(_TIME_COLUMN)
    micros = table.column(place).cast(pa.int64())  # Arrow imports pandas for times: half of the time of `status`
    values = table.set_column(place, _TIME_COLUMN, micros).to_pylist()
    newer = [value for value in values if value["format_version"] > FORMAT_VERSION]
    if newer:
        by, version = newer[0]["drainmark_version"], newer[0]["format_version"]
        known = f"this one knows {FORMAT_VERSION}"
        msg = f"the checkpoint table {where} has format {version}, written by Drainmark {by}; {known}"
        raise FormatTooNew(msg, remedy=f"install drainmark {by} or newer", drainmark_version=by, format=version)
    return [(value.pop(POSITION_COLUMN), _row(value)) for value in values]


def _values(row: CheckpointRow) -> dict[str, Any]:
    values = {field.name: getattr(row, field.name) for field in fields(row)}
    values["kind"] = row.kind.value
    for name in _JSON_COLUMNS:
        value: Mapping[str, Any] | None = values[name]
        if value is not None:  # a message with the name of a file that is no UTF-8 cannot be stored otherwise
            text = json.dumps(dict(value), ensure_ascii=False, allow_nan=False)
            values[name] = text if text.isascii() else printable_json(text)
    return values


def _row(values: dict[str, Any]) -> CheckpointRow:
    for name in _JSON_COLUMNS:
        values[name] = None if values[name] is None else json.loads(values[name])
    moment = _EPOCH + dt.timedelta(microseconds=values[_TIME_COLUMN])
    return CheckpointRow(**{**values, "kind": RowKind(values["kind"]), _TIME_COLUMN: moment})


SMALL_ROWS = 64
"""Rows of a commit with at most so many rows are kept in memory, once read, until the commit is compacted."""

_MOST_REGIONS = 256
"""The number of regions, those read last, of which a process keeps small files: a compaction leaves few of one."""

PlacedRows = tuple[tuple[int, CheckpointRow], ...]

_kept: dict[str, dict[str, tuple[object, PlacedRows]]] = {}  # by folder, and by path


def read_rows(folder: Folder, paths: Sequence[str], live: Collection[str]) -> Mapping[str, PlacedRows]:
    """Return the rows of each file, with their positions; rows of small files are kept in memory.

    A process looks at a region many times: a run before its claim, for it, and after it, a service at each tick. Nobody
    changes a checkpoint file, but a disk may lose it and a backup may replace it: so a file counts as read only as long
    as the same one lies at its path.

    Args:
        folder: of the checkpoint table.
        live: all files of the table; what was kept of others, which a compaction replaced, is let go.

    Raises:
        FormatTooNew: a row was written by a newer Drainmark.
        OSError: a file cannot be read.
    """
    known, before = traits(folder, paths), _kept.pop(folder.uri, {})
    entries = {path: before.get(path) for path in known}
    found = {path: entry[1] for path, entry in entries.items() if entry is not None and entry[0] == known[path]}
    new = [path for path in paths if path not in found]
    for path, table in zip(new, folder.read_each(new), strict=True):
        found[path] = tuple(placed_rows(table, str(folder)))
    small = {path: (known[path], rows) for path, rows in found.items() if path in known and len(rows) <= SMALL_ROWS}
    _kept[folder.uri] = {path: entry for path, entry in before.items() if path in live} | small
    for oldest in list(_kept)[:-_MOST_REGIONS]:
        _kept.pop(oldest, None)
    return found
