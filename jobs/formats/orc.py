"""ORC: a file is judged by its footer, and its times by their values; Spark reads it."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from drainmark.jobs.formats.bad_records import FileVerdict, Refused, require_fault_of_file
from drainmark.jobs.formats.column_fit import (
    WIDENED,
    Columns,
    Found,
    fault_of_columns,
    fault_of_others,
    not_declared,
    short,
    spark_columns,
    with_values,
)
from drainmark.jobs.formats.format import Expected, Format, Rows, Take

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrameReader

_READ_AS = {
    **{kind: others for kind, others in WIDENED.items() if kind not in ("date", "timestamp", "binary")},
    "timestamp_ntz": frozenset({"timestamp"}),
}
"""Spark would read bytes as hexadecimal digits, and it reads times without a zone as those of its machine's zone."""

_SECOND = 1_000_000_000
_CATALYST = b"spark.sql.catalyst.type"
_NTZ = "timestamp_ntz"


class Orc(Format):
    """Files of rows in named and typed columns. Spark finds damage only in compressed files, and not in all."""

    name = "orc"
    is_judged_by_libraries = True
    is_judged_in_part = True
    has_sure_count = True
    names_columns = True

    def judge(self, path: Path, expected: Expected, cleaned: Path, take: Take) -> FileVerdict:
        """Judge a file by its footer and, if times are declared, by the values of their columns."""
        import pyarrow as pa
        from pyarrow import orc

        columns = expected.columns or ()
        try:
            with path.open("rb") as opened, _watched(opened) as watched:
                file = orc.ORCFile(watched)
                fault = _fault_of_columns(file.schema, columns)
                if fault is None and expected.refuses_others:
                    fault = fault_of_others(file.schema, columns)
                if fault is None:
                    _check_times(file, columns)
                return FileVerdict(refused=fault, is_schema=True) if fault else FileVerdict(records=file.nrows)
        except Refused as refused:
            return FileVerdict(refused=str(refused))
        except (pa.ArrowException, OSError, ValueError) as error:
            require_fault_of_file(error)
            return FileVerdict(refused=f"is no ORC file that can be read: {short(error)}")

    def columns_in(self, file: BinaryIO, suffix: str, expected: Expected) -> Found | None:
        import pyarrow as pa
        from pyarrow import orc

        try:
            with _watched(file) as watched:
                opened = orc.ORCFile(watched)
                # Without a declaration all columns are wanted, to infer one.
                others = not_declared(opened.schema, expected.columns) if expected.columns is not None else ()
                lost = {name for name, _ in _unread_times(opened, others)}
            marked = _marked(opened.schema)
            fields = [
                field.with_type(_read_by_spark(field.type, None if field.name.casefold() in marked else "UTC"))
                for field in opened.schema
            ]
            return [(name, None if name in lost else kind) for name, kind in spark_columns(pa.schema(fields))]
        except (pa.ArrowException, OSError, ValueError) as error:
            require_fault_of_file(error)
            return None

    def fault_within(self, path: Path) -> str | None:
        import pyarrow as pa
        from pyarrow import orc

        try:
            with path.open("rb") as opened, _watched(opened) as watched:
                file = orc.ORCFile(watched)
                for stripe in range(file.nstripes):
                    file.read_stripe(stripe)
        except (pa.ArrowException, OSError, ValueError) as error:
            require_fault_of_file(error)
            return f"has stripes that cannot be read: {short(error)}"
        return None

    def reader(self, reader: DataFrameReader, ddl: str | None) -> DataFrameReader:
        """Return a reader with the Gregorian calendar for files that name none: else it silently changes old dates."""
        return super().reader(reader.option("orc.proleptic.gregorian.default", "true"), ddl)

    def encoded(
        self, rows: Rows, columns: Sequence[str], options: Mapping[str, str], schema: Callable[[], pa.Schema]
    ) -> bytes:
        import pyarrow as pa
        from pyarrow import orc

        buffer = io.BytesIO()
        orc.write_table(pa.Table.from_pylist(list(rows), schema=schema()), buffer)
        return buffer.getvalue()


class _Watched(io.RawIOBase):
    """A file that keeps the error of its disk or its store."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.failed: Exception | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        try:
            found = self._file.read(len(buffer))
        except Exception as error:
            self.failed = error
            raise
        buffer[: len(found)] = found
        return len(found)


@contextmanager
def _watched(file: BinaryIO) -> Iterator[_Watched]:
    """Give a file to ORC's library; raise the error of its disk or store, of which the library keeps only the text."""
    watched = _Watched(file)
    try:
        yield watched
    except Exception as error:
        if watched.failed is None:
            raise
        raise watched.failed from error


def _fault_of_columns(schema: pa.Schema, columns: Columns) -> str | None:
    """Compare columns. Spark writes times without a zone as marked numbers, and reads only such as `timestamp_ntz`."""
    marked = _marked(schema)
    judged = [(name, kind) for name, kind in columns if kind.simpleString() != _NTZ or name.casefold() not in marked]
    strange = next((name for name, kind in judged if _NTZ in kind.simpleString()), None)
    if strange is not None:
        return f"has times in {strange!r} that Spark cannot read as {_NTZ}"
    return fault_of_columns(schema, judged, _READ_AS)


def _marked(schema: pa.Schema) -> set[str]:
    """Return the columns, names in lower case, that Spark marked as times without a zone."""
    return {column.name.casefold() for column in schema if (column.metadata or {}).get(_CATALYST) == _NTZ.encode()}


def _read_by_spark(kind: pa.DataType, zone: str | None) -> pa.DataType:
    """Return the Arrow type of Spark's values: times of ORC are nanoseconds for Arrow and microseconds for Spark."""
    import pyarrow as pa

    return with_values(kind, lambda value: pa.timestamp("us", zone) if pa.types.is_timestamp(value) else value)


# --- times ----------------------------------------------------------------------------------------------------------


def _check_times(file: Any, columns: Columns) -> None:
    """Check the values of a file's declared timestamps.

    Raises:
        Refused: Spark would not read them unchanged; see `_unread_times`.
    """
    declared = [name for name, kind in columns if "timestamp" in kind.simpleString()]
    for _, why in _unread_times(file, declared):
        raise Refused(why)


def _unread_times(file: Any, columns: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the columns with times that Spark does not read unchanged, each with the reason.

    Spark would read them in the zone of its machine, or fail with an error that names no file: in files of the C++
    library it cannot read fractions of seconds before 1970.
    """
    folded = {name.casefold() for name in columns}
    timed = [each for each in file.schema if each.name.casefold() in folded and any(_times_in(each.type))]
    by_clock = [] if _has_utc_clock() else [each.name for each in timed if _is_by_clock(each.type)]
    for name in by_clock:
        zone = time.tzname[0]
        yield name, f"has times without a zone, and Spark would take them for those of {zone}: set TZ=UTC"
    names = [each.name for each in timed if each.name not in by_clock]
    if not names or file.writer == "ORC_JAVA":
        return
    has_dots = any("." in name for name in names)  # the library takes `a.b` for a field of column `a`
    for stripe in range(file.nstripes):
        read = file.read_stripe(stripe, columns=None if has_dots else names)
        for name in names:
            if any(_has_early_fraction(times) for times in _plain(read.column(read.schema.names.index(name)))):
                yield name, f"has times before 1970 with fractions of seconds, which Spark cannot read, in {name!r}"


def _times_in(kind: Any) -> Iterator[Any]:
    """Yield the types of times within a type."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        yield kind
    for place in range(kind.num_fields):
        yield from _times_in(kind.field(place).type)


def _is_by_clock(kind: Any) -> bool:
    return any(found.tz is None for found in _times_in(kind))


def _has_utc_clock() -> bool:
    return not any((time.timezone, time.daylight))


def _plain(values: Any) -> Iterator[Any]:
    """Yield the values of each part of a column that has no parts itself."""
    import pyarrow as pa

    if pa.types.is_map(values.type):
        parts = [values.keys, values.items]
    elif pa.types.is_list(values.type):
        parts = [values.flatten()]
    elif pa.types.is_struct(values.type):
        parts = values.flatten()
    else:
        yield values
        return
    for part in parts:
        yield from _plain(part)


def _has_early_fraction(values: Any) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_timestamp(values.type):
        return False
    numbers = values.cast(pa.timestamp("ns", values.type.tz)).cast(pa.int64())
    whole = pc.multiply(pc.divide(numbers, _SECOND), _SECOND)
    return bool(pc.any(pc.and_(pc.less(numbers, 0), pc.not_equal(numbers, whole))).as_py())


FORMAT = Orc()
