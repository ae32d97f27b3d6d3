"""Strict checks of JSON lines: one object per line, no name twice, no text behind the object.

Spark silently takes the first value of a line and drops the rest, keeps the last of two equal names, makes several rows
of an array, and puts `?` for half a surrogate pair. A line is good here if RFC 8259 allows it, its value is one object,
no object has a name twice, and every text can be stored as UTF-8.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from drainmark.jobs.formats.bad_records import CAPS, Refused

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_WHITE = " \t\r\n"
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\Z)|[\[{]|[\]}]|,', re.DOTALL)


def others_in(record: str, tokens: Mapping[str, Any], declared: Collection[str]) -> str | None:
    """Return the fields of other names of one good record as JSON, values unchanged; None if it has none."""
    return None if tokens.keys() <= set(declared) else _others(record, declared)


def _others(record: str, declared: Collection[str]) -> str | None:
    others = [
        f"{json.dumps(name, ensure_ascii=False)}:{value}"
        for name, value in members_of(record)
        if name not in declared and value != "null"
    ]
    return f"{{{','.join(others)}}}" if others else None


def members_of(record: str) -> Iterator[tuple[str, str]]:
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
    while text[at] in _WHITE:
        at += 1
    return at


_DOCUMENT = '; a file that is one object or one array is read with options={"multiLine": "true"}'


def tokens_of(record: str) -> dict[str, Any] | str:
    """Return the members of a record as tokens (see `json_values`), or why it is no record."""
    if excess := excess_of(record):
        return excess
    try:
        value, end = _TOKENS.raw_decode(record) if record[:1] == "{" else (None, -1)
        if end != len(record):  # it has white space around it, or is none
            value = _TOKENS.decode(record)
        if "\\" in record and _SURROGATE.search(record):
            json.dumps(value, ensure_ascii=False, default=bytes.decode).encode()  # numbers are bytes
    except UnicodeEncodeError:
        return "has half of a surrogate pair, which no UTF-8 can hold"
    except (ValueError, RecursionError) as error:
        if record.strip() in ("{", "["):
            return f"is no JSON: the value goes on in the next line{_DOCUMENT}"
        return f"is no JSON: {error}" if record.strip() else "is empty"
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        return f"is JSON, and no object: an array of objects{_DOCUMENT}"
    return value if isinstance(value, dict) else f"is JSON, and no object: {_kind(value)}"


def characters_of(record: str, columns: StructType) -> dict[str, Any]:
    """Return the members of a good record as tokens; each object or array in a text column is its characters."""
    tokens, _ = _read(record, _space(record, 0), columns)
    found: dict[str, Any] = tokens
    return found


def _read(record: str, at: int, kind: Any) -> tuple[Any, int]:
    """Return the tokens of the value that begins at a place, and the place behind it."""
    name, mark = kind.typeName() if kind is not None else "", record[at]
    if (name == "string" and mark in "{[") or (name, mark) not in (("struct", "{"), ("map", "{"), ("array", "[")):
        value, end = _TOKENS.raw_decode(record, at)
        return (record[at:end].encode() if name == "string" and mark in "{[" else value), end
    names: list[str] = []
    items: list[Any] = []
    parts = {field.name: field.dataType for field in kind.fields} if name == "struct" else {}
    at = _space(record, at + 1)
    while record[at] not in "}]":
        if mark == "{":
            member, end = _TOKENS.raw_decode(record, at)
            names.append(member)
            at = _space(record, _space(record, end) + 1)
        part = parts.get(names[-1]) if name == "struct" else kind.valueType if name == "map" else kind.elementType
        item, end = _read(record, at, part)
        items.append(item)
        at = _space(record, end)
        at = _space(record, at + 1) if record[at] == "," else at
    return (dict(zip(names, items, strict=True)) if mark == "{" else items), at + 1


def records_of_document(text: str) -> list[bytes]:
    """Return the characters of each record of a whole file that is an object or an array of objects, in order.

    Raises:
        Refused: it is neither. What an item of the array is, and whether it is a good record, is not judged.
    """
    if not text.strip():
        return []
    if excess := _excess(text, CAPS.document_values):
        raise Refused(excess)
    try:
        found = [*_items(text)]
    except IndexError:
        raise Refused("is no JSON: it ends within a value") from None
    except (ValueError, RecursionError) as error:
        raise Refused(f"is no JSON: {error}") from None
    return [text[start:end].encode() for start, end in found]


def _items(text: str) -> Iterator[tuple[int, int]]:
    """Yield the places of the objects of a document, or of the items of its array."""
    start = _space(text, 0)
    if text[start] != "[":
        value, end = _SCANNER.raw_decode(text, start)
        if not isinstance(value, dict):
            raise Refused(f"is JSON, and neither an object nor an array of objects: {_kind(value)}")
        yield start, end
    else:
        at, end = _space(text, start + 1), start + 1
        while text[at] != "]":
            _, end = _SCANNER.raw_decode(text, at)
            yield at, end
            at = _space(text, end)
            if text[at] == ",":
                at = _space(text, at + 1)
                if text[at] == "]":
                    raise json.JSONDecodeError("Expecting value", text, at)
            elif text[at] != "]":
                raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
        end = at + 1
    if rest := text[end:].lstrip(_WHITE):
        raise json.JSONDecodeError("Extra data", text, len(text) - len(rest))


def excess_of(record: str) -> str | None:
    """Return how a record is nested too deep, or has too many values; None if it may be parsed."""
    return _excess(record, CAPS.json_values) if len(record) > CAPS.json_depth else None  # a bracket is a character


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


_TOKENS = json.JSONDecoder(
    object_pairs_hook=_distinct, parse_constant=_refused, parse_float=str.encode, parse_int=str.encode
)
"""Gives tokens; see `json_values`."""

_SCANNER = json.JSONDecoder(parse_int=len, parse_float=len, parse_constant=len)
"""Finds the place where a value ends."""
