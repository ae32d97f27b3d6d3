"""Does a file that says which columns it has, have the declared ones?

Spark fills a column that a file lacks with nulls, silently; the file tells before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

Columns: TypeAlias = "Sequence[tuple[str, DataType]]"
"""Declared columns: name and type."""


@dataclass(frozen=True, slots=True)
class Bare:
    """The type of the numbers or bytes of a column whose own type Spark does not have: they say where a value is."""

    kind: DataType


Found: TypeAlias = "Sequence[tuple[str, DataType | Bare | None]]"
"""Columns of a file: name and type, None where Spark reads nothing of it."""

Widened: TypeAlias = Mapping[str, frozenset[str]]
"""Types, as Spark writes them, to the others that values are read as."""

_WHOLE = ("tinyint", "smallint", "int", "bigint")
WIDENED: Widened = {
    **{kind: frozenset((*_WHOLE[place + 1 :], *(("double",) if kind != "bigint" else ())))
       for place, kind in enumerate(_WHOLE)},
    "float": frozenset({"double"}),
    "date": frozenset({"timestamp_ntz"}),
    "timestamp": frozenset({"timestamp_ntz"}),
    "timestamp_ntz": frozenset({"timestamp"}),
    "string": frozenset({"binary"}),
    "binary": frozenset({"string"}),
}  # fmt: skip
"""Types of a Parquet file that Spark reads as another one without loss."""


_SHOWN = 10
_UNREAD = re.compile(r"uint|time(32|64)\[|timestamp\[ns|decimal256|halffloat")
"""In the names of Arrow's types: what Spark does not read from a file, or not within another type."""


def listed(names: Sequence[str]) -> str:
    """Return names for people, no more than they read."""
    some = ", ".join(repr(name[:64]) for name in names[:_SHOWN])
    return some if len(names) <= _SHOWN else f"{some} and {len(names) - _SHOWN} more"


def fault_of_others(schema: pa.Schema, columns: Columns) -> str | None:
    """Return which columns of a file are not declared, None if all are."""
    declared = {name.casefold() for name, _ in columns}
    others = [field.name for field in schema if field.name.casefold() not in declared]
    return f"has columns that are not declared: {listed(others)}" if others else None


def fault_of_columns(
    schema: pa.Schema, columns: Columns, read_as: Widened = WIDENED, *, has_bare: bool = False
) -> str | None:
    """Return how a file's columns differ from the declared ones, None if they fit, whatever the case of names.

    Args:
        has_bare: a column of a type that Spark does not have may be declared as the numbers or bytes that are there.
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
    """Return the type in which Spark reads a column of Arrow's type, None where it reads none."""
    if not _UNREAD.search(str(kind)):
        return spark_type(kind)
    bare = _bare(kind)
    return bare if bare is None or str(kind).startswith("uint") else Bare(bare)


def _bare(kind: Any) -> DataType | None:
    """Return in which type Spark reads the numbers or bytes as which Parquet keeps values of Arrow's type."""
    import pyarrow as pa
    from pyspark.sql import types

    if pa.types.is_nested(kind):
        is_map = pa.types.is_map(kind)
        fields = [kind.key_field, kind.item_field] if is_map else [kind.field(at) for at in range(kind.num_fields)]
        parts: list[Any] = [_bare(field.type) for field in fields]
        if None in parts:
            return None
        if pa.types.is_struct(kind):
            named = zip(fields, parts, strict=True)
            return types.StructType([types.StructField(field.name, part) for field, part in named])
        return types.MapType(*parts) if is_map else types.ArrayType(*parts)
    return _bare_value(kind)


def _bare_value(kind: Any) -> DataType | None:
    import pyarrow as pa
    from pyspark.sql import types

    if not _UNREAD.search(str(kind)):
        return spark_type(kind)
    if str(kind).startswith("uint"):
        unsigned = {"uint8": types.ShortType(), "uint16": types.IntegerType(), "uint32": types.LongType()}
        return unsigned.get(str(kind), types.DecimalType(20, 0))
    if pa.types.is_decimal(kind) or pa.types.is_float16(kind):
        return types.BinaryType()
    return types.IntegerType() if pa.types.is_time32(kind) else types.LongType()


def spark_type(kind: Any) -> DataType | None:
    """Return Spark's type for Arrow's, None where only Spark can tell."""
    from pyspark.sql.pandas.types import from_arrow_type

    try:
        return from_arrow_type(kind)
    except Exception:
        return None


def _fits(found: DataType, declared: DataType, read_as: Widened) -> bool:
    have, want = found.simpleString(), declared.simpleString()
    if have in (want, "void") or want in read_as.get(have, ()):  # void: nothing but nulls
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
    """Return what an error says in its first line."""
    return str(error).splitlines()[0][:300] if str(error) else type(error).__name__
