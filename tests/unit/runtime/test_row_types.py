"""The types of rows as sources give them, and the types that tables can store; without Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from drainmark.jobs.errors import OperatorFailed
from drainmark.jobs.formats.file_columns import sql_of
from drainmark.jobs.formats.values.far_times import python_rows
from drainmark.jobs.frames.tags import arrow_schema, tagged_type
from drainmark.jobs.operators.sinks.delta_append import DeltaAppend
from drainmark.jobs.runtime.analysis.column_types import unsupported
from drainmark.jobs.tasks.judged_rows import require_text


def test_times_are_in_utc_and_those_without_a_zone_stay_so() -> None:
    declared = StructType().add("at", TimestampType()).add("local", TimestampNTZType())
    found = arrow_schema(tagged_type(declared))
    assert found.names == ["_sequence_id", "_position", "at", "local"]
    assert found.field("at").type == pa.timestamp("us", "UTC")
    assert found.field("local").type == pa.timestamp("us")


def in_struct(name: str, kind: DataType) -> StructType:
    return StructType().add("a", ArrayType(StructType().add(name, kind)))


def test_a_field_may_be_called_as_a_type_is() -> None:
    for name in ("interval", "variant", "void", "charge", "characters", "a varchar(3)"):
        assert unsupported(in_struct(name, StringType())) == []
    for kind in (CalendarIntervalType(), DayTimeIntervalType(), VariantType(), NullType()):
        assert unsupported(in_struct("n", kind))
        assert unsupported(StructType().add("m", MapType(StringType(), kind)))


def test_names_of_fields_are_quoted_in_a_type_of_sql() -> None:
    """`types_of` and the parsers hand types to Spark as text."""
    kind = in_struct("content-type", MapType(StringType(), DecimalType(10, 2)))
    assert sql_of(kind) == "struct<`a`: array<struct<`content-type`: map<string, decimal(10,2)>>>>"
    assert sql_of(in_struct("a`b", StringType())) == "struct<`a`: array<struct<`a``b`: string>>>"


def test_a_text_that_is_no_utf8_is_refused_by_column_before_it_is_staged() -> None:
    """`cast(bytes as string)` gives such a text: it could be committed, but then neither read nor published."""
    sink = DeltaAppend("out").operator(name="out_sink", inputs=())
    bad = pa.StringArray.from_buffers(3, *pa.array([b"a", b"\xff", b"c"]).buffers()[1:])
    fine = pa.table({"n": [1, 2, 3], "name": ["a", "\u00fc", None]})
    assert require_text(sink, fine) is fine
    for column in (bad, pa.StructArray.from_arrays([bad], ["inner"])):
        with pytest.raises(OperatorFailed, match="'name'") as raised:
            require_text(sink, pa.table({"n": [1, 2, 3], "name": column}))
        assert raised.value.operator == "out_sink"
    assert python_rows(pa.table({"n": [1, 2, 3], "name": bad}))[1] == {"n": 2, "name": "\ufffd"}
