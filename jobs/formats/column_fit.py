"""The columns of a file that names them, and the declared ones: how they differ, and the rows of the one as the other.

A column that a file lacks is not silently filled with nulls: the file is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from drainmark.jobs.formats.bad_records import OtherColumns, Parsed, listed
from drainmark.jobs.formats.values.stored_values import Reading, is_list, reading_of
from drainmark.jobs.frames.tags import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

Columns: TypeAlias = "Sequence[tuple[str, DataType]]"
"""Declared columns: name and type."""


@dataclass(frozen=True, slots=True)
class Bare:
    """The type of a column's raw numbers or bytes, if Spark lacks its own type: they show which rows have a value."""

    kind: DataType


Found: TypeAlias = "Sequence[tuple[str, DataType | Bare | None]]"
"""Columns of a file: name and type; the type is None if Spark cannot read the column."""

_SPARK_DIGITS = 38


def require_columns(found: pa.Schema, columns: Columns, *, others: bool) -> None:
    """Compare a file's columns with the declared ones; upper and lower case are equal.

    Args:
        others: the file may have others.

    Raises:
        OtherColumns: they do not fit.
    """
    ColumnReader.of(found, columns)
    declared = {name.casefold() for name, _ in columns}
    strange = [name for name in found.names if name.casefold() not in declared]
    if strange and not others:
        raise OtherColumns(f"has columns that are not declared: {listed(strange)}")


@dataclass(frozen=True, slots=True)
class ColumnReader:
    """What makes rows of the declared columns from those of a file.

    Attributes:
        schema: the declared columns in Arrow's types.
        names: of the columns in the file.
        readings: of each column.
    """

    schema: pa.Schema
    names: Sequence[str]
    readings: Sequence[Reading]

    @classmethod
    def of(cls, found: pa.Schema, columns: Columns, *, is_julian: bool = False) -> ColumnReader:
        """Return the reader of a file with some columns; upper and lower case are equal.

        Args:
            is_julian: days before 1582 are counted by the Julian calendar.

        Raises:
            OtherColumns: a declared column is missing or has another type, or its name is not clear.
        """
        from pyspark.sql.types import StructField, StructType

        schema = arrow_schema(StructType([StructField(name, kind) for name, kind in columns]))
        names, readings, wrong = [], [], []
        for field, (name, kind) in zip(schema, columns, strict=True):
            alike = [each for each in found if each.name.casefold() == name.casefold()]
            is_clear = len(alike) == 1
            reading = reading_of(alike[0].type, field.type, name, is_julian=is_julian) if is_clear else None
            if reading is not None:
                names.append(alike[0].name)
                readings.append(reading)
            elif not alike:
                wrong.append(f"missing: {name!r}")
            elif len(alike) > 1:
                wrong.append(f"{listed([each.name for each in alike])} are one name")
            else:
                wrong.append(f"{name!r} is {_named(alike[0].type, kind)}, not {kind.simpleString()}")
        if wrong:
            raise OtherColumns(f"has other columns than declared; {'; '.join(wrong)}")
        return cls(schema, names, readings)

    def read(self, batch: pa.RecordBatch) -> Parsed:
        """Return the rows of a batch that has at least the columns of `names`, each once."""
        import pyarrow as pa

        taken = [read(batch.column(name)) for name, read in zip(self.names, self.readings, strict=True)]
        faults: dict[int, str] = {}
        for place, why in (fault for column in taken for fault in column.faults.items()):
            faults.setdefault(place, why)
        return Parsed(pa.Table.from_arrays([column.values for column in taken], schema=self.schema), faults)


def _named(kind: pa.DataType, wanted: DataType) -> str:
    """Return Spark's name of Arrow's type; Arrow's if Spark has no such type, or if it is the name of another."""
    found = spark_type(kind)
    return found.simpleString() if found not in (None, wanted) else str(kind)


def spark_columns(schema: pa.Schema) -> Found:
    """Return the columns of a file as Spark reads them."""
    return [(field.name, _read_type(field.type)) for field in schema]


def _read_type(kind: Any) -> DataType | Bare | None:
    """Return the type of Spark with the values of Arrow's type, None if there is none."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return _read_type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _read_type(pa.string() if kind.extension_name == "arrow.uuid" else kind.storage_type)
    fields = _inner(kind)
    if fields is None:
        return _read_value(kind)
    parts = [_read_type(field.type) for field in fields]
    names = {field.name.casefold() for field in fields}
    if None in parts or (pa.types.is_struct(kind) and len(names) < len(fields)):  # Spark takes no such struct
        return None
    made = _assembled(kind, fields, [part.kind if isinstance(part, Bare) else part for part in parts])
    return Bare(made) if any(isinstance(part, Bare) for part in parts) else spark_type(kind) or made


def _assembled(kind: Any, fields: Sequence[pa.Field], parts: Sequence[Any]) -> DataType:
    """Return the struct, map or array type that is made of the types of its parts."""
    import pyarrow as pa
    from pyspark.sql import types

    if pa.types.is_struct(kind):
        named = zip(fields, parts, strict=True)
        return types.StructType([types.StructField(field.name, part) for field, part in named])
    return types.MapType(*parts) if pa.types.is_map(kind) else types.ArrayType(*parts)


def _read_value(kind: Any) -> DataType | Bare | None:
    """Return the type of values that are not nested; see `_read_type`."""
    import pyarrow as pa
    from pyspark.sql import types

    others = {
        "uint8": types.ShortType(),
        "uint16": types.IntegerType(),
        "uint32": types.LongType(),
        "uint64": types.DecimalType(20, 0),
        "halffloat": types.FloatType(),
        "string_view": types.StringType(),
        "binary_view": types.BinaryType(),
    }
    if found := others.get(str(kind)):
        return found
    if pa.types.is_time32(kind):
        return Bare(types.IntegerType())
    if pa.types.is_time64(kind) or (pa.types.is_timestamp(kind) and kind.unit == "ns"):
        return Bare(types.LongType())
    if pa.types.is_decimal(kind) and kind.precision > _SPARK_DIGITS:
        return Bare(types.BinaryType())
    return spark_type(kind)


def _inner(kind: Any) -> Sequence[pa.Field] | None:
    """Return the inner fields of a list, a map or a struct, None for other types."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return [*kind]
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.value_field] if is_list(kind) else None


def with_values(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return Arrow's type with each type that is not nested changed; `change` is called in the order of the file."""
    import pyarrow as pa

    fields = _inner(kind)
    if fields is None:
        return change(kind)
    changed = [field.with_type(with_values(field.type, change)) for field in fields]
    if pa.types.is_struct(kind):
        return pa.struct(changed)
    return pa.map_(*changed) if pa.types.is_map(kind) else pa.list_(*changed)


def spark_type(kind: Any) -> DataType | None:
    """Return Spark's type for Arrow's, None if only Spark can tell."""
    from pyspark.sql.pandas.types import from_arrow_type

    try:
        return from_arrow_type(kind)
    except Exception:
        return None


def short(error: Exception) -> str:
    """Return the first line of an error's text, cut; the name of its class if it has no text."""
    return str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
