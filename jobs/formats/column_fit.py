"""Comparison of the columns that a file names with the declared ones.

Spark silently fills a column that a file lacks with nulls; the comparison finds the gap before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

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

Widened: TypeAlias = Mapping[str, frozenset[str]]
"""Types of a file, as Spark writes them, to the other types that their values can be read as."""

_WHOLE = ("tinyint", "smallint", "int", "bigint")
WIDENED: Widened = {
    **{
        kind: frozenset((*_WHOLE[place + 1 :], *(("double",) if kind != "bigint" else ())))
        for place, kind in enumerate(_WHOLE)
    },
    "float": frozenset({"double"}),
    "date": frozenset({"timestamp_ntz"}),
    "timestamp": frozenset({"timestamp_ntz"}),
    "timestamp_ntz": frozenset({"timestamp"}),
    "string": frozenset({"binary"}),
    "binary": frozenset({"string"}),
}
"""Types of a Parquet file that Spark reads as another one without loss."""


_SHOWN = 10
_SPARK_DIGITS = 38


def listed(names: Sequence[str]) -> str:
    """Return names as text for people: the first ones, and the number of the others."""
    some = ", ".join(repr(name[:64]) for name in names[:_SHOWN])
    return some if len(names) <= _SHOWN else f"{some} and {len(names) - _SHOWN} more"


def not_declared(schema: pa.Schema, columns: Columns) -> list[str]:
    """Return the columns of a file that are not declared; upper and lower case are equal."""
    declared = {name.casefold() for name, _ in columns}
    return [name for name in schema.names if name.casefold() not in declared]


def fault_of_others(schema: pa.Schema, columns: Columns) -> str | None:
    """Return the fault of a file with columns that are not declared, None if all are."""
    others = not_declared(schema, columns)
    return f"has columns that are not declared: {listed(others)}" if others else None


def fault_of_columns(
    schema: pa.Schema, columns: Columns, read_as: Widened = WIDENED, *, has_bare: bool = False
) -> str | None:
    """Return how a file's columns differ from the declared ones, None if they fit; upper and lower case are equal.

    Args:
        has_bare: a column of a type that Spark lacks may be declared with the type of its raw numbers or bytes.
    """
    wrong = [fault for name, kind in columns if (fault := _fault(schema, name, kind, read_as, has_bare=has_bare))]
    return f"has other columns than declared; {'; '.join(wrong)}" if wrong else None


def _fault(schema: Any, name: str, declared: DataType, read_as: Widened, *, has_bare: bool) -> str | None:
    fields = [field for field in schema if field.name.casefold() == name.casefold()]
    if not fields:
        return f"missing: {name!r}"
    found = spark_type(fields[0].type)
    if found is None or _fits(found, declared, read_as):
        return None
    bare = _read_type(fields[0].type) if has_bare else None
    if isinstance(bare, Bare) and bare.kind == declared:
        return None
    return f"{name!r} is {found.simpleString()}, not {declared.simpleString()}"


def spark_columns(schema: pa.Schema) -> Found:
    """Return the columns of a file as Spark reads them."""
    return [(field.name, _read_type(field.type)) for field in schema]


def _read_type(kind: Any) -> DataType | Bare | None:
    """Return the type in which Spark reads a column of Arrow's type, None if it cannot read it."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return _read_type(kind.value_type)
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

    if pa.types.is_unsigned_integer(kind):
        unsigned = {8: types.ShortType(), 16: types.IntegerType(), 32: types.LongType()}
        return unsigned.get(kind.bit_width, types.DecimalType(20, 0))
    if pa.types.is_time32(kind):
        return Bare(types.IntegerType())
    if pa.types.is_time64(kind) or (pa.types.is_timestamp(kind) and kind.unit == "ns"):
        return Bare(types.LongType())
    if pa.types.is_float16(kind) or (pa.types.is_decimal(kind) and kind.precision > _SPARK_DIGITS):
        return Bare(types.BinaryType())
    return spark_type(kind)


def _inner(kind: Any) -> Sequence[pa.Field] | None:
    """Return the inner fields of a list, a map or a struct, None for other types."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return [*kind]
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    has_elements = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return [kind.value_field] if has_elements else None


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


def _fits(found: DataType, declared: DataType, read_as: Widened) -> bool:
    have, want = found.simpleString(), declared.simpleString()
    if have in (want, "void") or want in read_as.get(have, ()):  # void: only nulls
        return True
    if have.startswith("decimal") and want.startswith("decimal"):
        digits: Any = (found, declared)
        (p1, s1), (p2, s2) = ((kind.precision, kind.scale) for kind in digits)
        return bool(s2 >= s1 and p2 - s2 >= p1 - s1)
    return _parts_fit(found, declared, read_as)


def _parts_fit(found: Any, declared: Any, read_as: Widened) -> bool:
    if type(found) is not type(declared):
        return False
    if hasattr(declared, "fields"):
        inner = {field.name.casefold(): field.dataType for field in found.fields}
        return all(
            field.name.casefold() in inner and _fits(inner[field.name.casefold()], field.dataType, read_as)
            for field in declared.fields
        )
    if hasattr(declared, "elementType"):
        return _fits(found.elementType, declared.elementType, read_as)
    if hasattr(declared, "keyType"):
        return _fits(found.keyType, declared.keyType, read_as) and _fits(found.valueType, declared.valueType, read_as)
    return False


def short(error: Exception) -> str:
    """Return the first line of an error's text, cut; the name of its class if it has no text."""
    return str(error).splitlines()[0][:300] if str(error) else type(error).__name__
