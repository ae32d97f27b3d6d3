"""Records that come as bytes or as texts, each one record: parsed as files of their format are, the bad ones separated.

A source's rows are parsed where they are read, by this process or by tasks, so frames of them have typed columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from drainmark.jobs.formats.bad_records import CAPS, Parsed
from drainmark.jobs.formats.column_fit import Columns
from drainmark.jobs.formats.format import Expected, Lines, format_of, no_collection
from drainmark.jobs.formats.lines.content import fault_of_text
from drainmark.jobs.formats.lines.line_ranges import may_be_quick
from drainmark.jobs.formats.values.grammar import Rules, misfit, values_of
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID, arrow_schema, tagged_type
from drainmark.jobs.lazy import F

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The declaration of values that come as bytes; a value that does not fit is judged like a row of a file.

    Attributes:
        column: name of the column of the values in the rows as read.
        format: `text`, `csv`, `json` or `debezium`.
        schema: DDL of their columns, with those that the format adds; None for text, which stays in a column of the
            same name.
        options: as for files, without those that concern a whole file.
        others: DDL of the types of the other columns, by name.
        takes_null: a row without a value has nulls, and is not bad.
        key: name of the column of their keys, which the rows have only as read; "" if keys are not needed.
        place: pattern that names a row's `block` and `row`, so that people find it.
    """

    column: str
    format: str
    schema: str | None
    options: Mapping[str, str]
    others: Mapping[str, str]
    on_bad: str
    takes_null: bool
    key: str = ""
    place: str = "row {row}"


BAD, RAW = "__bad", "__raw"
"""Columns of the rows as read: why a record is bad, and its bytes; null for a good one."""

TOMBSTONE = "__tombstone"
"""Column of batches of a format that has tombstones: such a record has no row, and is only counted."""

_OF_FILES = frozenset({"header", "multiline", "linesep", "encoding", "charset", "wholetext"})

_TOMBSTONE = "has no value: it is a tombstone"


def parse_texts(texts: pa.Array, expected: Expected) -> tuple[pa.Table, pa.Array]:
    """Parse texts, each of which is one record, as the records of files are parsed.

    Args:
        texts: strings or bytes. A line end behind a record is none of it.

    Returns:
        the declared columns, one row a text: all null if the text is null or bad; and why a text is bad, or null.
    """
    values: list[bytes | None] = texts.cast(_binary()).to_pylist()
    if (parsed := _parsed_quickly(values, expected)) is not None:
        return _without_bad(parsed, values)
    with no_collection():
        return _parsed_each(values, lambda texts: _parsed_alone([_record(text) for text in texts], expected))


def _parsed_changes(values: pa.Array, keys: pa.Array, expected: Expected) -> tuple[pa.Table, pa.Array, pa.Array]:
    """Return what `parse_texts` does for records that have keys, and say of each whether it is a tombstone."""
    import pyarrow as pa

    texts, names = values.to_pylist(), keys.to_pylist()
    faults = _faults_of_bytes(texts)
    records = [b"null" if text is None or place in faults else _record(text) for place, text in enumerate(texts)]
    with no_collection():
        parsed = _lines(expected).parse_keyed(records, names, expected)
    rows, why = _without_bad(Parsed(parsed.rows, {**parsed.faults, **faults}), texts)
    gone = parsed.tombstones - faults.keys()
    return rows, why, pa.array([place in gone for place in range(len(texts))], pa.bool_())


def _parsed_each(
    values: Sequence[bytes | None], parse: Callable[[Sequence[bytes]], Parsed]
) -> tuple[pa.Table, pa.Array]:
    """Return what `parse_texts` does: what `parse` makes of the texts that are UTF-8, and the faults of the others."""
    faults = _faults_of_bytes(values)
    parsed = parse([b"" if value is None or place in faults else value for place, value in enumerate(values)])
    return _without_bad(Parsed(parsed.rows, {**parsed.faults, **faults}), values)


def _parsed_quickly(values: Sequence[bytes | None], expected: Expected) -> Parsed | None:
    """Parse texts as the lines of one file; None if that might give something else."""
    if None in values:
        return None
    content = b"".join(value + b"\n" for value in values if value is not None)
    if b"\r" in content or content.count(b"\n") != len(values) or not may_be_quick(content):
        return None
    parsed = _lines(expected).parse_quickly(content, expected)
    return parsed if parsed is not None and len(parsed.rows) == len(values) else None  # a blank line is no record


def _parsed_alone(records: Sequence[bytes], expected: Expected) -> Parsed:
    """Parse records that come one by one: what would be skipped among the lines of a file, or be several, is bad."""
    lines = _lines(expected)
    parsed, is_record = lines.parse(records, expected), lines.record_test(expected)
    faults = dict(parsed.faults)
    for place, record in enumerate(records):
        if not is_record(record):
            faults[place] = "is a comment" if record.strip() else "is empty"
        elif (b"\n" in record or b"\r" in record) and lines.are_several(record.decode(), expected):
            faults[place] = "has several lines"
    return Parsed(parsed.rows, faults)


def wrong_options(form: str, options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (sentence, remedy) for the options with which texts that come one by one are not read."""
    given = {name.lower(): str(value) for name, value in options.items()}
    for name in sorted(given.keys() & _OF_FILES):
        yield f"the option {name!r} is one of files", "leave it out: each text is one record"
    if found := format_of(form).cannot_read(Expected(format=form, columns=None, options=given)):
        yield found


def _without_bad(parsed: Parsed, values: Sequence[bytes | None]) -> tuple[pa.Table, pa.Array]:
    """Return rows with nulls in place of texts that are null or bad, and the faults of the bad ones."""
    import pyarrow as pa

    rows, faults = parsed.rows, parsed.faults
    if faults or None in values:
        places = [None if value is None or place in faults else place for place, value in enumerate(values)]
        rows = rows.take(pa.array(places, pa.int64()))
    why = [faults.get(place) if value is not None else None for place, value in enumerate(values)] if faults else None
    return rows, pa.array(why, pa.string()) if why else pa.nulls(len(values), pa.string())


def _faults_of_bytes(values: Sequence[bytes | None]) -> dict[int, str]:
    if not fault_of_text(b"\n".join(value or b"" for value in values)):
        return {}
    return {place: why for place, value in enumerate(values) if (why := fault_of_text(value or b""))}


def _record(value: bytes) -> bytes:
    return value.removesuffix(b"\n").removesuffix(b"\r") if value.endswith(b"\n") else value


def _array(column: pa.ChunkedArray) -> pa.Array:
    import pyarrow as pa

    whole = column.combine_chunks()
    return whole if isinstance(whole, pa.Array) else pa.concat_arrays(whole.chunks)


def _binary() -> pa.DataType:
    import pyarrow as pa

    return pa.binary()


def _lines(expected: Expected) -> Lines:
    lines = expected.lines
    if lines is None:
        raise ValueError(f"values are no files of {expected.format}")
    return lines


# --- texts of a column --------------------------------------------------------------------------------------------

_BLANK = " "
ROW, WHY = "row", "why"
"""Fields of a parsed text: a struct of the columns, and why the text is bad, null if it is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextParser:
    """The parser of the texts of one column, for this process and for tasks.

    Attributes:
        form: `csv`, `json` or `key_value`.
        separator: of the fields of CSV, or of pairs.
        options: names in lower case.
    """

    form: str
    columns: Columns
    separator: str = ","
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> StructType:
        """Return the type of a parsed text."""
        from pyspark.sql.types import StringType, StructField, StructType

        row = StructType([StructField(name, kind) for name, kind in self.columns])
        return StructType([StructField(ROW, row), StructField(WHY, StringType())])

    def __call__(self, texts: pa.Array) -> pa.Array:
        """Return the parsed texts, which are strings or bytes; a null text has nulls, and is not bad."""
        import pyarrow as pa

        if self.form == "key_value":
            rows, why = _parsed_each(texts.cast(_binary()).to_pylist(), self._pairs)
        else:
            options = {**self.options, "sep": self.separator}
            rows, why = parse_texts(texts, Expected(format=self.form, columns=self.columns, options=options))
        schema = arrow_schema(self.kind)
        columns = [_array(rows[name]) for name, _ in self.columns]
        row = pa.StructArray.from_arrays(columns, names=rows.column_names).cast(schema.field(ROW).type)
        return pa.StructArray.from_arrays([row, why], fields=[*schema])

    def _pairs(self, texts: Sequence[bytes]) -> Parsed:
        return _parsed_pairs([text.decode() for text in texts], self.columns, self.separator)

    def column(self, name: str) -> Column:
        """Return the parsed texts of a column, which is a string or binary, as a column that tasks compute."""
        import pyarrow as pa
        from pyspark.sql.functions import arrow_udf

        def parsed(texts):  # type: ignore[no-untyped-def]
            return self(texts)

        # Spark infers from hints how to call it; it cannot resolve hints that are texts, as all are in this module
        parsed.__annotations__ = {"texts": pa.Array, "return": pa.Array}
        return arrow_udf(parsed, self.kind)(F.col(name).cast("binary"))


def _parsed_pairs(texts: Sequence[str], columns: Columns, separator: str) -> Parsed:
    """Parse texts of pairs; the last value of a key counts, and blanks around keys and values are none of them.

    A text is bad if it has none of the columns as a key, or a value that is none of its column.
    """
    import pyarrow as pa

    rules, found = Rules(), [_pairs(text, separator) for text in texts]
    names = [name for name, _ in columns]
    faults = {
        place: f"has none of the keys {', '.join(names)}"
        for place, pairs in enumerate(found)
        if not any(name in pairs for name in names)
    }
    arrays: list[pa.Array] = []
    for name, kind in columns:
        values = values_of(pa.array([pairs.get(name) for pairs in found], pa.string()), kind, rules)
        for place in values.misfits:
            faults.setdefault(place, f"key {name!r}: {misfit(found[place][name], kind, rules)}")
        arrays.append(values.values)
    return Parsed(pa.table(arrays, names=names), faults)


def _pairs(text: str, separator: str) -> dict[str, str]:
    parts = (part.partition("=") for part in text.split(separator) if "=" in part)
    return {key.strip(_BLANK): value.strip(_BLANK) for key, _, value in parts}


# --- rows of a source ---------------------------------------------------------------------------------------------


def read_type(records: Records) -> StructType:
    """Return the type of a source's rows as they are read: tags, the columns, `BAD` and `RAW`."""
    from pyspark.sql.types import BinaryType, StringType, StructType

    others = _parsed_ddl(", ".join(f"`{name}` {kind}" for name, kind in records.others.items()))
    read = StructType().add(records.column, StringType()) if records.schema is None else StructType()
    for column in (*_schema(records).fields, *others.fields):
        read.add(column.name, column.dataType)
    return tagged_type(read.add(BAD, StringType()).add(RAW, BinaryType()))


def read_records(batches: Iterable[pa.RecordBatch], records: Records, expected: Expected) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a source with the columns of the records in place of their bytes, and `BAD`, `RAW`.

    Args:
        expected: of the records, see `expected_of`; a task cannot call that, since types in DDL need a session.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    for batch in batches:
        values, gone = batch.column(records.column), dict[str, pa.Array]()
        if records.key:
            rows, why, gone[TOMBSTONE] = _parsed_changes(values, batch.column(records.key), expected)
        else:
            rows, why = _texts(values, records.column) if records.schema is None else parse_texts(values, expected)
        if not records.takes_null:
            why = pc.if_else(pc.is_null(values), _TOMBSTONE, why)
        raw = pc.if_else(pc.is_null(why), pa.scalar(None, pa.binary()), values)
        read = (records.column, "" if records.key in records.others else records.key)
        others = {name: batch.column(name) for name in batch.schema.names if name not in read}
        columns = {name: rows[name] for name in rows.column_names}
        yield from pa.table({**others, **columns, BAD: why, RAW: raw, **gone}).combine_chunks().to_batches()


def _texts(values: pa.Array, name: str) -> tuple[pa.Table, pa.Array]:
    """Return bytes as a column of texts, and why some are no text."""
    import pyarrow as pa

    found: list[bytes | None] = values.to_pylist()
    faults = _faults_of_bytes(found)
    texts = pa.array([None if place in faults else value for place, value in enumerate(found)], pa.binary())
    return _without_bad(Parsed(pa.table({name: texts.cast(pa.string())}), faults), found)


def separated(rows: DataFrame, place: str = "") -> tuple[DataFrame, Sequence[dict[str, Any]]]:
    """Return the good ones of rows as read, with the source's columns, and the bad ones for the quarantine.

    Args:
        rows: with `BAD` and `RAW`; every read of it gives the same rows.
        place: pattern that names a row's `block` and `row`; "" if the reasons say where it is.

    Returns:
        the good rows; and for each bad one, of at most one more than `CAPS.bad_rows`, `_sequence_id`, `position`,
        `raw`, `reason`.
    """
    bad = rows.where(f"{BAD} is not null").limit(CAPS.bad_rows + 1).select(SEQUENCE_ID, POSITION, BAD, RAW).toArrow()
    return rows.where(f"{BAD} is null").drop(BAD, RAW), [_told(row, place) for row in bad.to_pylist()]


def _told(row: dict[str, Any], place: str) -> dict[str, Any]:
    """Return a bad row in the form that the quarantine takes."""
    at = row[POSITION]
    reason = f"{place.format(**at)}: {row[BAD]}" if place else row[BAD]
    return {SEQUENCE_ID: row[SEQUENCE_ID], "position": at["row"], "raw": row[RAW], "reason": reason}


def expected_of(records: Records) -> Expected:
    """Return the declaration of the values, in the form that a declaration of files has."""
    columns = tuple((column.name, column.dataType) for column in _schema(records).fields) if records.schema else None
    options = {name.lower(): str(value) for name, value in records.options.items()}
    return Expected(format=records.format, columns=columns, options=options)


def _schema(records: Records) -> StructType:
    return _parsed_ddl(records.schema or "")


@lru_cache(maxsize=64)
def _parsed_ddl(ddl: str) -> StructType:
    from pyspark.sql.types import StructType

    return StructType.fromDDL(ddl)
