"""Conversion of rows to the content of CSV, JSON lines, Parquet and text files, and back."""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import SchemaMismatch
from drainmark.jobs.tasks.exported_files import RowsWriter

if TYPE_CHECKING:
    import pyarrow as pa


ENDINGS = {"csv": "csv", "json": "json", "parquet": "parquet", "text": "txt"}
"""The endings of file names, by format."""


def require_format(schema: pa.Schema, file_format: str) -> None:
    """Check that a format can hold the columns of a schema.

    Raises:
        SchemaMismatch: it cannot.
    """
    import pyarrow as pa

    if file_format == "text" and [field.type for field in schema] != [pa.string()]:
        found = ", ".join(f"{field.name}: {field.type}" for field in schema)
        msg = f"text files hold one column of texts, the stream has {found}"
        raise SchemaMismatch(msg, remedy="dm.select one column before the sink, or choose another format")
    nested = [field.name for field in schema if pa.types.is_nested(field.type) or pa.types.is_binary(field.type)]
    if file_format == "csv" and nested:
        msg = f"CSV cannot hold the columns {', '.join(nested)}, which are nested or binary"
        raise SchemaMismatch(msg, remedy='write them as text, e.g. F.to_json, or format="json"', columns=tuple(nested))


def bytes_of(rows: pa.Table, file_format: str) -> bytes:
    """Return the content of a file of these rows, as `RowsWriter` writes it."""
    import pyarrow as pa

    file = pa.BufferOutputStream()
    writer = RowsWriter(file, rows.schema, file_format)
    if rows.num_rows:
        writer.write(rows)
    writer.close()
    return bytes(file.getvalue())


def rows_of(data: bytes, file_format: str, schema: pa.Schema) -> pa.Table:
    """Return the rows of a file's content that `bytes_of` made."""
    import pyarrow as pa

    if file_format == "parquet":
        import pyarrow.parquet

        return pyarrow.parquet.read_table(pa.BufferReader(data)).cast(schema)
    if file_format == "csv":
        return _read_csv(data, schema)
    lines = data.decode().split("\n")[:-1]
    if file_format == "text":
        return pa.table({schema.names[0]: pa.array(lines, pa.string())})
    rows = [json.loads(line) for line in lines]
    columns = [[_of_json(row[field.name], field.type) for row in rows] for field in schema]
    return pa.table([pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)], schema)


_LEAST_BLOCK, _LARGEST_BLOCK = 2**20, 2**31 - 1


def _read_csv(data: bytes, schema: pa.Schema) -> pa.Table:
    import pyarrow as pa
    import pyarrow.csv

    convert = pyarrow.csv.ConvertOptions(
        column_types=schema, strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=[""]
    )
    # In a CSV file of one column, a null is an empty line: files of earlier versions have some.
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
    # A record must be within two blocks, and may have texts of any size: so the file is one block.
    read = pyarrow.csv.ReadOptions(block_size=min(max(len(data), _LEAST_BLOCK), _LARGEST_BLOCK))
    return pyarrow.csv.read_csv(pa.BufferReader(data), read_options=read, parse_options=parse, convert_options=convert)


def _of_json(value: Any, kind: pa.DataType) -> Any:
    import pyarrow as pa

    scalars: tuple[tuple[Callable[[Any], bool], Callable[[Any], Any]], ...] = (
        (pa.types.is_timestamp, dt.datetime.fromisoformat),
        (pa.types.is_date, dt.date.fromisoformat),
        (pa.types.is_decimal, Decimal),
        (pa.types.is_binary, base64.b64decode),
        (pa.types.is_floating, float),  # also for the texts "NaN" and "Infinity"
    )
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _of_json(value[field.name], field.type) for field in kind}
    if pa.types.is_list(kind):
        return [_of_json(item, kind.value_type) for item in value]
    if pa.types.is_map(kind):
        return [(_of_json(key, kind.key_type), _of_json(item, kind.item_type)) for key, item in value]
    make = next((make for is_kind, make in scalars if is_kind(kind)), None)
    return make(value) if make else value
