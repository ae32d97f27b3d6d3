"""Column types that tables can hold, and keys that find rows; checked before the claim."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from drainmark.jobs.errors import DeclarationError, OperatorFailed, Violation
from drainmark.jobs.frames.tags import GONE, SEQUENCE_ID, TAGS, plain_types
from drainmark.jobs.graph.context import OperatorContext
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.operators.row_wise.functor import Functor
from drainmark.jobs.operators.sinks.sink import Sink
from drainmark.jobs.operators.sources.source import Source
from drainmark.jobs.operators.sql import SqlOperator
from drainmark.jobs.operators.windows.windowed_aggregate import KeyedValues
from drainmark.jobs.protocol.records.manifest import RegionTable, StagedFile
from drainmark.jobs.regions.plan import RegionPlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_TIMES = ("timestamp", "timestamp_ntz", "date")
_UNSUPPORTED = re.compile(r"(void|interval|variant|char|varchar)\b")


def check_types(application: str, operator: Operator, frame: DataFrame) -> None:
    """Refuse columns that an operator would store and that Delta cannot hold.

    Raises:
        DeclarationError: a column has such a type, or is there twice.
    """
    if operator.output_state is None and not isinstance(operator, Sink):
        return
    wrong = unsupported(frame.schema)
    doubled = _twins(frame.columns)
    if wrong or doubled:
        found = f"columns of types that Delta cannot hold: {', '.join(wrong)}" if wrong else f"twice: {doubled}"
        rule, remedy = "COLUMN_TYPE" if wrong else "COLUMN_TWICE", "cast or rename the columns before the sink"
        raise DeclarationError(application, [operator.wrong(rule, found, remedy)])


def refuse(application: str, violations: Iterable[Violation]) -> None:
    """Raise the error that names all violations; do nothing if there are none."""
    if found := list(violations):
        raise DeclarationError(application, found)


def check_names(application: str, operator: Operator, frames: OperatorContext) -> None:
    """Refuse names by which the steps of an operator would not find columns, or would find others.

    Raises:
        DeclarationError: an operator that is no source, functor or SQL operator gets columns with a backtick in their
            name, or with names that differ only in case; or a value reads the field of a struct that is a column.
    """
    if isinstance(operator, Source | Functor | SqlOperator):
        return
    known = [port.stream for port in operator.inputs if port.stream in frames.streams]  # a loop's comes later
    problems = (problem for stream in known for problem in _name_problems(operator, frames.streams[stream].columns))
    refuse(application, (operator.wrong(*problem) for problem in problems))


def _name_problems(operator: Operator, columns: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    rename = "rename the column in a dm.functor before"
    if odd := sorted({name for name in columns if "`" in name}):
        yield "COLUMN_NAME", f"a backtick is in the name of {', '.join(map(repr, odd))}", rename
    if twins := _twins(columns):
        yield "COLUMN_TWICE", f"{', '.join(map(repr, twins))}: Spark does not tell upper from lower case", rename
    if isinstance(operator, KeyedValues):
        read = {name for value in operator.values.values() for name in value.columns or ()}
        for name in sorted(name for name in read & set(columns) if name.partition(".")[0] not in columns):
            message = f"without backticks {name!r} means a field of a struct, and it is a column"
            yield "COLUMN_NAME", message, f"write it between backticks: {f'`{name}`'!r}"


def _twins(columns: Sequence[str]) -> list[str]:
    """Return the names that Spark takes for the same."""
    alike = Counter(name.lower() for name in columns)
    return sorted({name for name in columns if alike[name.lower()] > 1})


def check_gone(
    operator: Operator, origins: Mapping[str, str], frame: DataFrame, unlike_rows: Callable[[DataFrame], str | None]
) -> None:
    """Refuse a result whose tag `GONE` says something else than its stream: it is lost, or the author's own column.

    Args:
        origins: see `change_streams`.
        unlike_rows: returns the reason why a function is not row-wise; asked only of row-wise operators.

    Raises:
        OperatorFailed: it does; or an operator of a change stream is not row-wise.
    """
    origin, message = origins.get(operator.name), ""
    if not operator.outputs or operator.is_reference:
        return
    if origin is None and GONE in frame.columns:
        message = f"its result has a column {GONE}, the name of the tag of change streams"
        remedy = f"give it another name: rows.withColumnRenamed({GONE!r}, …)"
    elif origin is not None and GONE not in frame.columns:
        message = f"its result lacks {GONE}, which says for each change of {origin!r} whether the row comes or is gone"
        remedy = "select the columns by dm.select, which keeps it"
    elif origin is not None and not operator.gives_changes and not operator.keeps_state and len(operator.inputs) == 1:
        message = unlike_rows(frame) or ""
        remedy = f"compute this before {origin!r}, or from one row alone"
    if message:
        text = f"{operator.name!r}: {message}"
        raise OperatorFailed(text, operator=operator.name, location=operator.location, remedy=remedy)


def check_measured(operator: Operator, frames: OperatorContext) -> None:
    """Refuse columns that an operator compares as times or numbers, and that have another type.

    Spark would read a text such as 12:34 as a time of the current day: a replay after midnight would give other rows.

    Raises:
        OperatorFailed: a column has another type; the error names the column, its type, and how to convert it.
    """
    from pyspark.sql.types import NumericType, StringType

    for measured in operator.measured:
        if measured.port.stream not in frames.streams:  # the stream of a loop is not known yet
            continue
        kinds = {field.name.lower(): field.dataType for field in frames.input(measured.port).schema.fields}
        kind = kinds.get(measured.column.lower())  # if the column is missing, the step itself fails
        if kind is None or (kind.typeName() in _TIMES if measured.is_time else isinstance(kind, NumericType)):
            continue
        name = measured.column
        made = f"F.to_timestamp({name!r}, 'yyyy-MM-dd HH:mm:ss')"
        if not measured.is_time:
            made = f"F.col({name!r}).cast('double')"
        elif not isinstance(kind, StringType):
            made = f"F.timestamp_seconds({name!r})"
        wanted = "event time is a timestamp" if measured.is_time else "a difference by a number is one of numbers"
        raise OperatorFailed(
            f"{operator.name!r}: `{name}` of {measured.port.stream!r} is {kind.typeName()}, and {wanted}",
            operator=operator.name,
            location=operator.location,
            remedy=f"declare it so in the source's schema, or make it one before: rows.withColumn({name!r}, {made})",
        )


def unsupported(schema: StructType) -> list[str]:
    """Return the columns, with their types, that Delta cannot hold; a field's name does not count, e.g. `interval`."""
    return [
        f"{field.name}: {field.dataType.simpleString()}"
        for field in schema.fields
        if any(_UNSUPPORTED.match(kind.simpleString()) for kind in plain_types(field.dataType))
    ]


def require_ids(operator: Operator, files: Sequence[StagedFile], first_id: int, last_id: int) -> None:
    """Refuse rows with ids that are not in their group: no rewind would find them.

    Raises:
        OperatorFailed: a function has replaced the id of a row by another one.
    """
    for file in files:
        if file.rows and not first_id <= (file.first_id or 0) <= (file.last_id or 0) <= last_id:
            raise OperatorFailed(
                f"{operator.name!r}: rows of ids {first_id} to {last_id} got {file.first_id} to {file.last_id}",
                operator=operator.name,
                location=operator.location,
                remedy=f"have every function before it leave {SEQUENCE_ID} as it came",
            )


def check_keys(application: str, region: RegionPlan, tables: Sequence[RegionTable]) -> None:
    """Refuse keys by which rows could not be matched in memory after the commit: a struct, an array or a map; and keys
    whose case differs from that of the column, which only Spark ignores.

    Raises:
        DeclarationError: an operator has such a key; the error names every such operator.
    """
    nested: dict[str, dict[str, None]] = {}
    for table in tables:
        nested.setdefault(table.operator, {}).update(dict.fromkeys(nested_keys(table)))
    remedy = "make its fields columns, or a text of it by F.to_json, before"
    violations = [
        region.operator(name).wrong(
            "KEY_TYPE", f"{', '.join(keys)} cannot be a key, being a struct, an array or a map", remedy
        )
        for name, keys in nested.items()
        if keys
    ]
    for table in tables:
        remedy = f"write the key as the column is written: one of {', '.join(table.column_names)}"
        unknown = (key for key in table.keys if key not in table.column_names)
        operator = region.operator(table.operator)
        violations += [operator.wrong("KEY_COLUMN", f"{key} is a key and no column", remedy) for key in unknown]
    refuse(application, violations)


def check_layouts(application: str, region: RegionPlan, tables: Sequence[RegionTable]) -> None:
    """Refuse partitions and orders that do not fit the columns of a table.

    Raises:
        DeclarationError: an operator asks for one; the error names every such operator.
    """
    found = ((region.operator(table.operator), problem) for table in tables for problem in _layout_problems(table))
    refuse(application, (operator.wrong(*problem) for operator, problem in found))


_PARTITIONED = ("string", "byte", "short", "integer", "long", "boolean", "date")


def _layout_problems(table: RegionTable) -> Iterator[tuple[str, str, str]]:
    """Yield (rule, message, remedy) for each fault of the partitions and the order that a table is asked for."""
    kinds = {field["name"]: field["type"] for field in json.loads(table.schema_json)["fields"]}
    by, order = (table.options.get(name, ()) for name in ("partition_by", "cluster_by"))
    own = [name for name in kinds if name != SEQUENCE_ID]
    for name in (*by, *order):
        if name not in kinds:
            option = "partition_by" if name in by else "cluster_by"
            yield "LAYOUT_COLUMN", f"{option} names {name!r}, which is no column", f"one of {', '.join(own)}"
    for name in by:
        if name in kinds and kinds[name] not in _PARTITIONED:
            kind = kinds[name] if isinstance(kinds[name], str) else kinds[name]["type"]
            message = f"partition_by names {name!r}, a {kind}"
            remedy = "a text, a whole number, a date or a boolean of few values; of a time its day: F.to_date"
            yield "PARTITION_TYPE", message, remedy
    for name in order:
        if isinstance(kinds.get(name), dict):
            yield "CLUSTER_TYPE", f"cluster_by names {name!r}, a {kinds[name]['type']}", "a column without parts"
    if by and set(own) <= set(by):
        yield "PARTITION_ALL", "partition_by names all columns", "leave those out that have many values"


def check_channel_keys(application: str, region: RegionPlan, streams: Mapping[str, DataFrame]) -> None:
    """Refuse keys of channels by which rows cannot be brought together.

    Raises:
        DeclarationError: a stream lacks the column, or the column is a struct, an array or a map.
    """
    from pyspark.sql.types import ArrayType, MapType, StructType

    violations = []
    for channel in region.channels:
        kinds = {field.name: field.dataType for field in streams[channel.stream].schema.fields}
        for key in channel.keys:
            if key in kinds and not isinstance(kinds[key], ArrayType | MapType | StructType):
                continue
            reader = region.operator(channel.readers[0])
            known = ", ".join(name for name in kinds if name not in TAGS)
            wrong = "is a struct, an array or a map" if key in kinds else f"is none of its columns, {known}"
            violations.append(
                Violation(
                    rule="CHANNEL_KEYS",
                    message=f"{reader.name!r} reads {channel.stream!r} buffered with keys={list(channel.keys)!r}:"
                    f" {key!r} {wrong}",
                    operator=reader.name,
                    location=reader.location,
                    remedy="give columns of the stream that are no struct, array or map, in dm.buffered(…, keys=[…])",
                )
            )
    refuse(application, violations)


def nested_keys(table: RegionTable) -> list[str]:
    """Return the keys of a table that are a struct, an array or a map."""
    kinds = {field["name"]: field["type"] for field in json.loads(table.schema_json)["fields"]}
    return [key for key in table.keys if isinstance(kinds.get(key), dict)]
