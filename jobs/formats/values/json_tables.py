"""Arrow's reader of JSON with the declared types, for lines of which a cheap look shows that it reads what they say.

Arrow refuses text against RFC 8259, equal names in an object, lone surrogates, a token of another kind than the
declared type (a number in a text column, a text in one of numbers), and decimals that it would have to round. But it
accepts NaN and several values on a line, overflows the stack by nesting, makes infinity and zero of numbers that are
too large or too small, and decimals with more digits than their type. Those are looked for here. Times and bytes are
read as texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from drainmark.jobs.formats.bad_records import CAPS
from drainmark.jobs.formats.values.grammar import Rules, values_of
from drainmark.jobs.formats.values.json_values import from_base64

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_NOT_A_NUMBER = re.compile(rb"[:\[,]\s*[-+]?(?:NaN|Inf)")
_TINY = re.compile(rb"[:\[,]\s*-?[0-9][0-9.]*[eE]-")
_ZEROS = b"0" * 32
_LONG_DIGITS = re.compile(rb"[0-9]{%d}" % (CAPS.number_digits // 2))

_PARSED_LINES, _PARSED_CELLS = 4096, 1 << 24
"""Lines, and lines times names, that Arrow parses at once. Its memory is a cell for each line and each name that any of
the lines has: sixteen thousand lines with a name of their own each, 0.3 MB, would take 4 GB and 14 s."""

_MOST_COLUMNS = 256
"""Columns of a table that may be empty for the most part."""


class NotSure(Exception):
    """A closer look must tell what the records say."""


def rows_of(content: bytes, columns: StructType, rules: Rules, *, may_have_others: bool) -> pa.Table | None:
    """Return the rows of whole lines in the declared columns, None if a closer look is needed.

    Args:
        may_have_others: fields that are not declared are allowed, and left out.

    A row without any value may be a record without any declared field.
    """
    import pyarrow as pa

    data = content.replace(b"\r\n", b"\n") if b"\r" in content else content
    if not data.endswith(b"\n"):
        data += b"\n"
    read_as = _read_as(columns)
    ends = None if read_as is None or b"\r" in data or may_hold_nan(data) else ends_of_objects(data)
    if ends is None or _has_odd_line(data, ends):
        return None
    schema, parts = pa.schema([*read_as]), list[pa.Table]()
    try:
        for lines, rows in tables(data, ends, schema):
            if rows.num_rows != lines or not (may_have_others or set(rows.column_names) <= set(columns.names)):
                return None
            _require_names(rows.column_names, columns)
            parts.append(rows.select(columns.names))
        # fields of a struct that are not declared may differ from part to part
        rows = pa.concat_tables(parts, promote_options="permissive").combine_chunks()
        found = {name: rows.column(name).chunk(0) for name in columns.names}
        return pa.table(_fields(found, columns, _LineFacts(data, rules)), names=columns.names)
    except (pa.ArrowException, NotSure, ValueError):
        return None


def has_row_without_value(rows: pa.Table) -> bool:
    """Say whether all columns of a row are null."""
    import pyarrow.compute as pc

    if any(column.null_count == 0 for column in rows.columns):
        return False
    some = None
    for column in rows.columns:
        some = column.is_valid() if some is None else pc.or_(some, column.is_valid())
    return some is None or not pc.all(some).as_py()


def tables(data: bytes, ends: Any, schema: pa.Schema | None = None) -> Iterator[tuple[int, pa.Table]]:
    """Parse lines by Arrow, some at a time; yield their number and their rows.

    Args:
        ends: places of the line feeds, one for each line.
        schema: types of the columns that are not to be inferred.

    Raises:
        pyarrow.ArrowException: a line is no JSON, or its fields have other types than those of the lines beside it.
        ValueError: the lines have too many names for Arrow; one at a time, they can be parsed otherwise.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.json as pj

    colons = np.flatnonzero(np.frombuffer(data, np.uint8) == ord(":"))
    names = np.concatenate(([0], np.searchsorted(colons, ends)))  # at most so many, before each line
    types, first, start = pj.ParseOptions(explicit_schema=schema), 0, 0
    while first < len(ends):
        count = min(_PARSED_LINES, len(ends) - first)
        while count > 1 and count * int(names[first + count] - names[first]) > _PARSED_CELLS:
            count //= 2
        found = int(names[first + count] - names[first])
        if count == 1 and found > _PARSED_LINES:
            raise ValueError(f"{found} names in a line")
        stop = int(ends[first + count - 1]) + 1
        options = pj.ReadOptions(use_threads=False, block_size=stop - start + 1)
        rows = pj.read_json(pa.BufferReader(memoryview(data)[start:stop]), read_options=options, parse_options=types)
        if rows.num_columns > _MOST_COLUMNS and rows.num_columns * count > 8 * found:
            raise ValueError(f"{rows.num_columns} names in {count} lines")
        yield count, rows
        first, start = first + count, stop


def may_hold_nan(data: bytes) -> bool:
    has = (b"N" in data and b"NaN" in data) or (b"I" in data and b"Inf" in data)  # one byte is found in no time
    return has and _NOT_A_NUMBER.search(data) is not None


def ends_of_objects(data: bytes) -> Any:
    """Return the places of the line feeds if each line starts with { and ends with }, and none can be nested too deep.

    Such a line cannot end inside a value: no JSON has } and { next to each other.
    """
    import numpy as np

    content = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(content == ord("\n"))
    starts = ends[:-1] + 1
    if content[0] != ord("{") or (content[starts] != ord("{")).any() or (content[ends - 1] != ord("}")).any():
        return None
    opens = np.flatnonzero((content == ord("{")) | (content == ord("[")))
    if len(opens) > CAPS.json_depth:
        lines = np.searchsorted(ends, opens)
        if (lines[CAPS.json_depth :] == lines[: -CAPS.json_depth]).any():
            return None
    return ends


def _has_odd_line(data: bytes, ends: Any) -> bool:
    """Say whether a line is so long that it may have too many values, or a number of too many digits."""
    import numpy as np

    longest = int(np.diff(ends, prepend=-1).max())
    if longest > CAPS.json_values:
        return True
    step = CAPS.number_digits // 2  # a run of so many digits has a place of each step, and all digits behind it
    return longest > CAPS.number_digits and any(_LONG_DIGITS.match(data, at) for at in range(0, len(data), step))


# --- types ----------------------------------------------------------------------------------------------------------


def _read_as(kind: Any) -> Any:
    """Return the Arrow type as which a type is read, None if it cannot be."""
    import pyarrow as pa

    name = kind.typeName()
    if name == "struct":
        parts = [(field.name, _read_as(field.dataType)) for field in kind.fields]
        return pa.struct(parts) if all(part is not None for _, part in parts) else None
    if name == "array":
        item = _read_as(kind.elementType)
        return None if item is None else pa.list_(item)
    if name == "decimal":
        return pa.decimal128(kind.precision, kind.scale)
    plain = {
        "byte": pa.int8, "short": pa.int16, "integer": pa.int32, "long": pa.int64, "float": pa.float32,
        "double": pa.float64, "boolean": pa.bool_,
        **dict.fromkeys(("string", "binary", "date", "timestamp", "timestamp_ntz"), pa.string),
    }  # fmt: skip
    return plain[name]() if name in plain else None  # not maps: Arrow wants them as arrays of pairs


@dataclass(frozen=True)
class _LineFacts:
    """What is known of the lines, and how texts become values."""

    data: bytes
    rules: Rules

    @cached_property
    def may_hold_tiny(self) -> bool:
        """Say whether a number may be so small that it is read as zero."""
        import numpy as np

        content = np.frombuffer(self.data, np.uint8)
        before = content[np.flatnonzero(content == ord("-")) - 1]
        has_exponent = ((before == ord("e")) | (before == ord("E"))).any()
        return _ZEROS in self.data or bool(has_exponent and _TINY.search(self.data))


def _fields(found: Mapping[str, pa.Array], kind: StructType, look: _LineFacts) -> list[pa.Array]:
    """Return the declared fields of objects.

    Raises:
        NotSure: a value may not be what the lines say, or a name differs from a declared one only in case.
    """
    _require_names(found, kind)
    return [_values(found[field.name], field.dataType, look) for field in kind.fields]


def _require_names(names: Iterable[str], kind: StructType) -> None:
    """Raise `NotSure` if a name differs from a declared one only in case."""
    folded = {name.casefold() for name in kind.names}
    if any(name.casefold() in folded for name in names if name not in kind.names):
        raise NotSure


def _values(read: Any, kind: Any, look: _LineFacts) -> pa.Array:
    """Return values in the declared type; see `_fields`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    name = kind.typeName()
    if name == "struct":
        found = dict(zip([field.name for field in read.type], read.flatten(), strict=True))
        return pa.StructArray.from_arrays(_fields(found, kind, look), names=kind.names, mask=read.is_null())
    if name == "array":
        lengths = pc.fill_null(pc.list_value_length(read), 0)
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])
        items = _values(read.flatten(), kind.elementType, look)
        type_ = pa.list_(pa.field("element", items.type))
        return pa.ListArray.from_arrays(offsets, items, type=type_, mask=read.is_null())
    if name in ("float", "double"):
        is_tiny = pc.any(pc.equal(read, 0)).as_py() and look.may_hold_tiny
        if is_tiny or pc.all(pc.is_finite(read)).as_py() is False:
            raise NotSure
    elif name == "decimal":
        read.validate(full=True)
    elif name == "binary" or name in _TIMES:
        values, misfits = from_base64(read) if name == "binary" else values_of(read, kind, look.rules)
        if misfits:
            raise NotSure
        return values
    return read


_TIMES = ("date", "timestamp", "timestamp_ntz")
