"""Cells of a database become the values of the declared columns: exactly, or their row is bad.

A source gives each cell as a text. `PLACE` names the row for people; a field of bytes in hexadecimal digits says so.
A column of bytes has texts too, as their UTF-8: the columns of SQLite hold values of any type.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drainmark.jobs.formats.byte_records import BAD, RAW
from drainmark.jobs.formats.values.grammar import Rules, misfit, unreadable, values_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

PLACE = "__place"
"""Column of the rows as read: the cursor of each row, in words."""

HEX: Mapping[str, str] = {"bytes": "hex"}
"""Metadata of a field whose texts are PostgreSQL's of bytes, as `\\x0a`."""

_RULES = Rules()
_BITS = {"0": "false", "1": "true"}
_FAR_ZONE = r"[+-]\d\d:\d\d:\d\d$"
"""A distance from UTC with seconds: PostgreSQL writes it for the local times of places before there were zones."""


def type_with_faults(declared: StructType) -> StructType:
    """Return the type of rows as they are written for Spark: with the fault of a bad row, and its cells as JSON."""
    from pyspark.sql.types import StringType, StructType

    return StructType([*declared.fields]).add(BAD, StringType()).add(RAW, StringType())


def refusal(columns: Iterable[tuple[str, DataType]]) -> str | None:
    """Return why cells never become values of a declared column; None if they do."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    for name, kind in columns:
        if isinstance(kind, ArrayType | MapType | StructType):
            return f"column {name!r}: a cell of a database is no {kind.simpleString()}"
        if (why := unreadable(kind)) is not None:
            return f"column {name!r}: {why}"
    return None


@dataclass(frozen=True, slots=True)
class CellReader:
    """Reads cells as values of columns: (name, type), without the tags. It is sent to tasks."""

    columns: tuple[tuple[str, DataType], ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches with the declared columns that they have, and `BAD` and `RAW`: null for a good row."""
        import pyarrow as pa

        for batch in batches:
            found: dict[str, pa.Array] = {}
            reasons: dict[int, list[str]] = {}
            for name, kind in self.columns:
                if name not in batch.schema.names:
                    continue  # the reader of rows tells the column
                field = batch.schema.field(name)
                found[name], faults = _values(batch.column(name), kind, is_hex=field.metadata is not None)
                for place, fault in faults.items():
                    reasons.setdefault(place, []).append(f"column {name!r}: {fault}")
            places = batch.column(PLACE)
            bad = [None] * batch.num_rows
            raw = [None] * batch.num_rows
            for place, each in reasons.items():
                bad[place] = f"{places[place].as_py()}: {'; '.join(each)}"  # type: ignore[call-overload]
                raw[place] = _cells(batch.slice(place, 1))  # type: ignore[call-overload]
            yield pa.record_batch({**found, BAD: pa.array(bad, pa.string()), RAW: pa.array(raw, pa.string())})


def _values(cells: pa.Array, kind: DataType, *, is_hex: bool) -> tuple[pa.Array, dict[int, str]]:
    """Return the values of cells, and by place why a cell is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    name = kind.typeName()
    if name == "binary":
        if is_hex:
            cells = pa.array([text and bytes.fromhex(text[2:]) for text in cells.to_pylist()], pa.binary())
        return cells.cast(pa.binary()), {}
    cells, faults = _as_texts(cells)
    if name == "boolean":  # databases without booleans write them as numbers
        cells = pc.if_else(pc.is_in(cells, pa.array([*_BITS])), pc.equal(cells, "1").cast(pa.string()), cells)
    elif name == "timestamp":
        cells = _without_far_zones(cells)
    values, misfits = values_of(cells, kind, _RULES)
    return values, faults | {place: misfit(cells[place].as_py(), kind, _RULES) for place in misfits}


def _as_texts(cells: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    import pyarrow as pa

    if pa.types.is_string(cells.type):
        return cells, {}
    texts: list[str | None] = []
    faults = {}
    for place, content in enumerate(cells.to_pylist()):
        try:
            texts.append(content and content.decode())
        except UnicodeDecodeError:
            texts.append(None)
            faults[place] = f"{content[:16]!r} are bytes, and no text in UTF-8"
    return pa.array([None if text is None else str(text or "") for text in texts], pa.string()), faults


def _without_far_zones(cells: pa.Array) -> pa.Array:
    import datetime as dt

    import pyarrow as pa
    import pyarrow.compute as pc

    is_far = pc.match_substring_regex(cells, _FAR_ZONE)
    if not pc.any(is_far).as_py():
        return cells
    texts = cells.to_pylist()
    for place in pc.indices_nonzero(is_far).to_pylist():
        try:
            texts[place] = dt.datetime.fromisoformat(texts[place]).astimezone(dt.UTC).isoformat()
        except (ValueError, OverflowError):
            continue  # no time at all, or of no year from 1 to 9999
    return pa.array(texts, pa.string())


def _cells(row: pa.RecordBatch) -> str:
    """Return the cells of one row as JSON."""
    (cells,) = row.drop_columns([PLACE]).to_pylist()
    shown: dict[str, Any] = {
        name: rf"\x{cell.hex()}" if isinstance(cell, bytes) else cell for name, cell in cells.items()
    }
    return json.dumps(shown, ensure_ascii=False)
