"""Parquet footers: is the file whole, and does it have the declared columns (I19)?

Spark fills a column that a file lacks with nulls, silently; the footer tells before.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from drainmark.jobs.formats.bad_records import CAPS, Verdict

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

Columns: TypeAlias = "Sequence[tuple[str, DataType]]"
"""Declared columns: name and type."""

_WHOLE = ("tinyint", "smallint", "int", "bigint")
_WIDENED = {
    **{kind: frozenset((*_WHOLE[place + 1 :], *(("double",) if kind != "bigint" else ())))
       for place, kind in enumerate(_WHOLE)},
    "float": frozenset({"double"}),
    "date": frozenset({"timestamp_ntz"}),
    "timestamp": frozenset({"timestamp_ntz"}),
    "timestamp_ntz": frozenset({"timestamp"}),
    "string": frozenset({"binary"}),
    "binary": frozenset({"string"}),
}  # fmt: skip
"""Types of a file that Spark reads as another one without loss."""


def inspect(path: Path, columns: Columns) -> Verdict:
    """Judge a Parquet file by its footer; its pages are read by nobody yet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(path)
        found = metadata.schema.to_arrow_schema()
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's fault, not the file's
        return Verdict(refused=f"is no Parquet file that can be read: {_short(error)}")
    size = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    if size > CAPS.decompressed_bytes:
        return Verdict(refused=f"holds more than {CAPS.decompressed_bytes} bytes when decompressed")
    wrong = [fault for name, kind in columns if (fault := _fault(found, name, kind))]
    if wrong:
        return Verdict(refused=f"has other columns than declared; {'; '.join(wrong)}", is_schema=True)
    return Verdict(records=metadata.num_rows)


def fault_of_pages(path: Path) -> str | None:
    """Read a file to its end, a batch at a time; return why that fails, None if it does not."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for _ in file.iter_batches():
                pass
    except (pa.ArrowException, OSError, ValueError) as error:
        return f"has pages that cannot be read: {_short(error)}"
    return None


def _fault(schema: Any, name: str, declared: DataType) -> str | None:
    fields = [field for field in schema if field.name.casefold() == name.casefold()]
    if not fields:
        return f"missing: {name!r}"
    found = _spark_type(fields[0].type)
    if found is None or _fits(found, declared):
        return None
    return f"{name!r} is {found.simpleString()}, not {declared.simpleString()}"


def _spark_type(kind: Any) -> DataType | None:
    """Return Spark's type for Arrow's, None where only Spark can tell."""
    from pyspark.sql.pandas.types import from_arrow_type

    try:
        return from_arrow_type(kind)
    except Exception:
        return None


def _fits(found: DataType, declared: DataType) -> bool:
    have, want = found.simpleString(), declared.simpleString()
    if have in (want, "void") or want in _WIDENED.get(have, ()):  # void: nothing but nulls
        return True
    if have.startswith("decimal") and want.startswith("decimal"):
        digits: Any = (found, declared)
        (p1, s1), (p2, s2) = ((kind.precision, kind.scale) for kind in digits)
        return bool(s2 >= s1 and p2 - s2 >= p1 - s1)
    return _parts_fit(found, declared)


def _parts_fit(found: Any, declared: Any) -> bool:
    if type(found) is not type(declared):
        return False
    if hasattr(declared, "fields"):
        inner = {field.name.casefold(): field.dataType for field in found.fields}
        return all(
            field.name.casefold() in inner and _fits(inner[field.name.casefold()], field.dataType)
            for field in declared.fields
        )
    if hasattr(declared, "elementType"):
        return _fits(found.elementType, declared.elementType)
    if hasattr(declared, "keyType"):
        return _fits(found.keyType, declared.keyType) and _fits(found.valueType, declared.valueType)
    return False


def _short(error: Exception) -> str:
    return str(error).splitlines()[0][:300] if str(error) else type(error).__name__
