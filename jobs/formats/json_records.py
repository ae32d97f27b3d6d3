"""Strict checks of JSON lines: one object per line, no name twice, no text behind the object.

Spark silently takes the first value of a line and drops the rest, keeps the last of two equal names, makes several rows
of an array, and puts `?` for half a surrogate pair. A line is good here if RFC 8259 allows it, its value is one object,
no object has a name twice, and every text can be stored as UTF-8.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from drainmark.jobs.formats.bad_records import CAPS, OtherFields
from drainmark.jobs.formats.column_fit import listed

if TYPE_CHECKING:
    import pyarrow as pa

    from drainmark.jobs.formats.values.lossy_values import Lossless

_NOT_A_NUMBER = re.compile(rb"[:\[,]\s*[-+]?(?:NaN|Inf)")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\Z)|[\[{]|[\]}]|,', re.DOTALL)

_PARSED_LINES, _PARSED_CELLS = 4096, 1 << 24
"""Lines, and lines times names, that Arrow parses at once. Its memory is a cell for each line and each name that any of
the lines has: sixteen thousand lines with a name of their own each, 0.3 MB, would take 4 GB and 14 s."""

_MOST_COLUMNS = 256
"""Columns of a table that may be empty for the most part."""


def good_records(chunk: bytes, lossless: Lossless | None = None, declared: Collection[str] | None = None) -> int | None:
    """Return the number of records in whole lines if all are good, None if one needs a closer look.

    Args:
        lossless: a record whose values Spark would change is not good.
        declared: a record with fields of other names is not good; None if such fields are allowed.

    Arrow parses the lines. It refuses text against RFC 8259, equal names in an object, and lone surrogates. But it
    would accept NaN and several values on a line, and overflow the stack by nesting; so these are checked before.
    """
    import pyarrow as pa

    data = chunk.replace(b"\r\n", b"\n") if b"\r" in chunk else chunk
    if not data.endswith(b"\n"):
        data += b"\n"
    if b"\r" in data or _may_hold_nan(data) or (lossless and lossless.suspects_digits(data)):
        return None
    ends = _ends_of_objects(data)
    if ends is None:
        return None
    try:
        for lines, rows in _tables(data, ends, lossless.explicit_schema if lossless else None):
            if rows.num_rows != lines or (declared is not None and not set(rows.column_names) <= set(declared)):
                return None
            if lossless and lossless.suspects_json(rows):
                return None
    except (pa.ArrowException, ValueError):
        return None
    return len(ends)


def _tables(data: bytes, ends: Any, schema: pa.Schema | None = None) -> Iterator[tuple[int, pa.Table]]:
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


def _may_hold_nan(data: bytes) -> bool:
    return (b"NaN" in data or b"Inf" in data) and _NOT_A_NUMBER.search(data) is not None


def _ends_of_objects(data: bytes) -> Any:
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


def fault_of(line: str, *, strict: bool) -> str | None:
    """Return why a line is no record, None if it is one."""
    if fault := _excess(line, CAPS.json_values):
        return fault
    if not strict:
        return None
    value, fault = _parsed(line)
    if fault is None and not isinstance(value, dict):
        return f"is JSON, and no object: {_kind(value)}"
    return fault


def fault_of_names(line: str, declared: Collection[str]) -> OtherFields | None:
    """Return the fault of a record with fields of other names, None if it has none."""
    others = [name for name, _ in _members(line) if name not in declared]
    return OtherFields(f"has fields that are not declared: {listed(others)}") if others else None


def others_of(records: Sequence[bytes], declared: Collection[str]) -> list[str | None]:
    """Return for each good record its fields of other names as JSON, values unchanged; None if it has none.

    A null is no value: it is left out, as in the formats that name their columns once per file.
    """
    import numpy as np
    import pyarrow as pa

    data = b"".join(record.strip() + b"\n" for record in records)
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
    try:
        if all(set(rows.column_names) <= set(declared) for _, rows in _tables(data, ends)):
            return [None] * len(records)
    except (pa.ArrowException, ValueError):
        pass  # the records are good all the same, for example if a field has another type in each
    return [_others(record.decode(), declared) for record in records]


def _others(record: str, declared: Collection[str]) -> str | None:
    others = [
        f"{json.dumps(name, ensure_ascii=False)}:{value}"
        for name, value in _members(record)
        if name not in declared and value != "null"
    ]
    return f"{{{','.join(others)}}}" if others else None


def _members(record: str) -> Iterator[tuple[str, str]]:
    """Yield the names and the texts of the values of a record that is one object."""
    at = _space(record, record.index("{") + 1)
    while record[at] != "}":
        name, end = _SCANNER.raw_decode(record, at)
        start = _space(record, _space(record, end) + 1)
        _, end = _SCANNER.raw_decode(record, start)
        yield name, record[start:end]
        at = _space(record, end)
        at = _space(record, at + 1) if record[at] == "," else at


def _space(text: str, at: int) -> int:
    """Return the next place that is no white space."""
    while text[at] in " \t\r\n":
        at += 1
    return at


def fault_of_document(text: str) -> str | None:
    """Return why a whole file is neither an object nor an array of objects, None if it is."""
    if not text.strip():
        return None
    value, fault = (None, excess) if (excess := _excess(text, CAPS.document_values)) else _parsed(text)
    if fault is not None:
        return fault
    found = value if isinstance(value, list) else [value]
    wrong = next((item for item in found if not isinstance(item, dict)), None) if found else None
    if wrong is not None or None in found:
        return f"is JSON, and neither an object nor an array of objects: {_kind(wrong)}"
    return None


def _parsed(text: str) -> tuple[Any, str | None]:
    try:
        value = _DECODER.decode(text)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return None, "has half of a surrogate pair, which no UTF-8 can hold"
    except (ValueError, RecursionError) as error:
        return None, f"is no JSON: {error}"
    return value, None


def _excess(text: str, most_values: int) -> str | None:
    """Return how a text is nested too deep, or has too many values; None if it may be parsed."""
    opened = text.count("{") + text.count("[")
    if opened <= CAPS.json_depth and opened + text.count(",") < most_values:
        return None
    depth, values = 0, 1
    for found in _TOKEN.finditer(text):
        mark = found.group()
        depth += (mark in ("{", "[")) - (mark in ("}", "]"))
        values += mark in ("{", "[", ",")  # at most: an object or an array may be empty
        if depth > CAPS.json_depth:
            return f"is nested deeper than {CAPS.json_depth}"
        if values > most_values:
            return f"has more than {most_values} values"
    return None


def _kind(value: Any) -> str:
    kinds = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")


def _distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the name {twice[:64]!r} stands twice in an object")
    return found


def _refused(literal: str) -> Any:
    raise ValueError(f"{literal} is no number of JSON")


def _finite(literal: str) -> float:
    value = float(literal)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{literal[:64]} is too large for a double")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_distinct, parse_constant=_refused, parse_float=_finite, parse_int=len)
"""Whole numbers may be too long for Python to convert, so only their length is taken; no code uses the values."""

_SCANNER = json.JSONDecoder(parse_int=len, parse_float=len, parse_constant=len)
"""Finds the place where a value ends."""
