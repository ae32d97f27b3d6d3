"""Records that a source gives as bytes: checked byte by byte, parsed by Spark; those that do not fit are separated.

The check finds records that Spark's functions would silently change or take in part, as the check of files does
(`jobs.formats.lines.line_format`): text that is no UTF-8, JSON with more text behind it, quotes that are not closed.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from drainmark.jobs.formats.bad_records import CAPS
from drainmark.jobs.formats.format import Expected, Lines, format_of
from drainmark.jobs.formats.lines.spark_rejects import reason_for
from drainmark.jobs.formats.records import Records
from drainmark.jobs.formats.values.text_columns import BAD, literal, struct_of
from drainmark.jobs.frames.row_types import tagged_type
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_FAULT = "__fault"
"""Column of the rows as read: the fault in the bytes, null if there is none."""

_RAW, _PARSED, _TEXT = "__raw", "__parsed", "__text"
_MISFIT = ""
"""Fault of a row that only Spark found bad; `_told` finds the reason from its text."""


def raw_type(records: Records) -> StructType:
    """Return the type of the rows as they are written for Spark: tags, bytes, the other columns, the fault."""
    from pyspark.sql.types import BinaryType, StringType, StructType

    others = StructType.fromDDL(", ".join(f"`{name}` {kind}" for name, kind in records.others.items()))
    raw = StructType().add(records.column, BinaryType())
    for column in others.fields:
        raw.add(column.name, column.dataType)
    return tagged_type(raw.add(_FAULT, StringType()))


def with_faults(batches: Iterable[pa.RecordBatch], records: Records, expected: Expected) -> Iterator[pa.RecordBatch]:
    """Yield the batches with one column more: the fault in the bytes of each row.

    Args:
        expected: of the records, see `expected_of`; a task cannot call that, since types in DDL need a session.
    """
    import pyarrow as pa

    for batch in batches:
        values = batch.column(records.column).to_pylist()
        faults = pa.array(_faults(values, records, expected), pa.string())
        yield pa.record_batch([*batch.columns, faults], names=[*batch.schema.names, _FAULT])


class Once(Protocol):
    """Computes the frames of one attempt once (`jobs.runtime.input.materialisation.Materialiser`)."""

    @property
    def small(self) -> bool: ...
    def once(self, frame: DataFrame) -> DataFrame: ...
    def local(self, rows: pa.Table, like: DataFrame) -> DataFrame: ...


def judged(rows: DataFrame, records: Records, materialiser: Once) -> tuple[DataFrame, Sequence[dict[str, Any]]]:
    """Parse rows once; return the good ones with the source's columns, and the bad ones for the quarantine.

    Returns:
        the good rows; and for each bad one `_sequence_id`, `position`, `raw`, `reason`. Of a large group these are at
            most one more than `CAPS.bad_rows`.
    """
    text = f"cast(`{records.column}` as string)"
    text = _lines(records).sql_of_value(text)
    others = [f"`{name}`" for name in records.others]
    tags = (SEQUENCE_ID, POSITION)
    columns = [field.name for field in _schema(records).fields] if records.schema else [records.column]
    parsed = rows.selectExpr(
        *tags, *others, _FAULT, f"`{records.column}` as {_RAW}", f"if({_FAULT} is null, {text}, null) as {_TEXT}"
    )
    if records.schema:
        struct = struct_of(_TEXT, records.format, _schema(records), records.options)
        parsed = parsed.selectExpr("*", f"{struct} as {_PARSED}")
        picked = [f"{_PARSED}.`{name}` as `{name}`" for name in columns]
        is_misfit = f"{_TEXT} is not null and ({_PARSED} is null or {_PARSED}.{BAD} is not null)"
    else:
        picked, is_misfit = [f"{_TEXT} as `{records.column}`"], "false"
    bad = f"case when {_FAULT} is not null then {_FAULT} when {is_misfit} then {literal(_MISFIT)} end as {BAD}"
    whole = parsed.selectExpr(*tags, *picked, *others, bad, _RAW).selectExpr(
        *tags, *(f"`{name}`" for name in columns), *others, BAD, f"if({BAD} is null, null, {_RAW}) as {_RAW}"
    )
    return _separated(whole, records, materialiser)


def _separated(rows: DataFrame, records: Records, materialiser: Once) -> tuple[DataFrame, Sequence[dict[str, Any]]]:
    import pyarrow.compute as pc

    wanted = [SEQUENCE_ID, POSITION, BAD, _RAW]
    if materialiser.small:
        table = rows.toArrow()
        is_bad = pc.is_valid(table[BAD])
        good = table.filter(pc.invert(is_bad)).drop_columns([BAD, _RAW])
        bad = table.filter(is_bad).select(wanted)
        frame = materialiser.local(good, rows)
    else:
        kept = materialiser.once(rows)
        bad = kept.where(f"{BAD} is not null").limit(CAPS.bad_rows + 1).select(*wanted).toArrow()
        frame = kept.where(f"{BAD} is null").drop(BAD, _RAW)
    return frame, [_told(row, records) for row in bad.to_pylist()]


def _told(row: dict[str, Any], records: Records) -> dict[str, Any]:
    """Return a bad row in the form that the quarantine takes."""
    place, raw = row[POSITION], row[_RAW]
    reason = row[BAD] or reason_for(raw.decode().removesuffix("\n").removesuffix("\r"), expected_of(records))
    where = records.place.format(block=place["block"], row=place["row"])
    return {SEQUENCE_ID: row[SEQUENCE_ID], "position": place["row"], "raw": raw, "reason": f"{where}: {reason}"}


# --- checks of the bytes ------------------------------------------------------------------------------------------


def _faults(values: Sequence[bytes | None], records: Records, expected: Expected) -> list[str | None]:
    """Return the fault of each value, None for a good one; usually one pass over all values finds them good."""
    if None not in values and _are_good(values, records, expected):
        return [None] * len(values)
    return [_fault(value, records, expected) for value in values]


def _are_good(values: Sequence[bytes | None], records: Records, expected: Expected) -> bool:
    joined = b"\n".join(value or b"" for value in values)
    if b"\0" in joined or not _is_utf8(joined):
        return False
    return _lines(records).are_good(values, joined, expected)


def _fault(value: bytes | None, records: Records, expected: Expected) -> str | None:
    if value is None:
        return None if records.takes_null else "has no value: it is a tombstone"
    if b"\0" in value:
        return "has a NUL byte"
    if not _is_utf8(value):
        return "is no UTF-8"
    return _lines(records).fault_of_value(value.decode(), expected)


def _lines(records: Records) -> Lines:
    lines = format_of(records.format).lines
    if lines is None:
        raise ValueError(f"values are no files of {records.format}")
    return lines


def _is_utf8(value: bytes) -> bool:
    try:
        codecs.utf_8_decode(value, "strict", True)
    except UnicodeDecodeError:
        return False
    return True


def _options(records: Records) -> dict[str, str]:
    return {name.lower(): str(value) for name, value in records.options.items()}


def expected_of(records: Records) -> Expected:
    """Return the declaration of the values, in the form that a declaration of files has."""
    columns = tuple((column.name, column.dataType) for column in _schema(records).fields) if records.schema else None
    return Expected(format=records.format, columns=columns, options=_options(records), strict=records.strict)


def _schema(records: Records) -> StructType:
    return _parsed_ddl(records.schema or "")


@lru_cache(maxsize=64)
def _parsed_ddl(ddl: str) -> StructType:
    from pyspark.sql.types import StructType

    return StructType.fromDDL(ddl)
