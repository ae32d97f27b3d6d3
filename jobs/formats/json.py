"""JSON lines: one object per line; with `multiLine` a file is one object, or an array of objects."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from drainmark.jobs.formats import json_records
from drainmark.jobs.formats.bad_records import OtherFields, Parsed, listed
from drainmark.jobs.formats.format import Expected, Lines, Rows, as_text
from drainmark.jobs.formats.lines.line_format import LINE_OPTIONS, VALUE_OPTIONS, LineFormat
from drainmark.jobs.formats.values import json_tables
from drainmark.jobs.formats.values.json_values import fields_of
from drainmark.jobs.frames.tags import RESCUED

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

BLANK = bytes(range(1, 33))
"""The bytes that surround a record, or of which a line alone is none."""


class JsonLines(Lines):
    """Lines of JSON, checked strictly by `json_records`."""

    has_documents = True

    def record_test(self, expected: Expected) -> Callable[[bytes], bool]:
        return lambda line: bool(line.strip(BLANK))

    def parse(self, records: Sequence[bytes], expected: Expected) -> Parsed:
        kind, texts = _type_of(expected), [record.decode() for record in records]
        found = [json_records.tokens_of(text) for text in texts]
        faults = {place: each for place, each in enumerate(found) if isinstance(each, str)}
        objects = [None if isinstance(each, str) else each for each in found]
        columns, misfits = fields_of(objects, kind.fields, expected.rules)
        if in_texts := [place for place, (_, reason) in misfits.items() if reason is None]:
            for place in in_texts:
                objects[place] = json_records.characters_of(texts[place], kind)
            columns, misfits = fields_of(objects, kind.fields, expected.rules)
        faults |= {place: f"field {path[1:]!r}: {reason}" for place, (path, reason) in misfits.items()}
        faults = {**faults_of_names(objects, expected), **faults}
        if expected.on_schema != "rescue":
            return Parsed(table_of(columns, expected), faults)
        good = (place not in faults and objects[place] for place in range(len(objects)))
        others = [json_records.others_in(text, each or {}, kind.names) for text, each in zip(texts, good, strict=True)]
        return Parsed(table_of(columns, expected, others), faults)

    def parse_quickly(self, content: bytes, expected: Expected) -> Parsed | None:
        rows = json_tables.rows_of(
            content, _type_of(expected), expected.rules, may_have_others=expected.on_schema is None
        )
        if rows is None or (not _may_lack_fields(expected) and json_tables.has_row_without_value(rows)):
            return None
        return Parsed(table_of(rows.columns, expected, [None] * rows.num_rows), {})

    def documents(self, text: str, expected: Expected) -> Sequence[bytes]:
        return json_records.records_of_document(text)


def _names(expected: Expected) -> frozenset[str]:
    return frozenset(name for name, _ in expected.columns or ())


def _type_of(expected: Expected) -> StructType:
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(name, kind) for name, kind in expected.columns or ()])


def table_of(columns: Sequence[Any], expected: Expected, others: Sequence[str | None] = ()) -> pa.Table:
    """Return the declared columns, and that of the other fields if they are to be rescued."""
    import pyarrow as pa

    names = [name for name, _ in expected.columns or ()]
    if expected.on_schema != "rescue":
        return pa.table([*columns], names=names)
    return pa.table([*columns, pa.array(others, pa.string())], names=[*names, RESCUED])


def _may_lack_fields(expected: Expected) -> bool:
    return expected.options.get("allownofields", "false").lower() == "true"


def faults_of_names(objects: Sequence[Mapping[str, Any] | None], expected: Expected) -> dict[int, str]:
    """Return the records that have other fields where none may be, or no declared field."""
    declared, faults = _names(expected), dict[int, str]()
    keeps_others = expected.on_schema == "rescue"
    if not _may_lack_fields(expected):
        for place, each in enumerate(objects):
            if each is not None and declared.isdisjoint(each) and not (keeps_others and each):
                has = f"it has {listed([*each])}" if each else "it is empty"
                faults[place] = f'has no declared field, {has}; if this may be, set the option "allowNoFields": "true"'
    if expected.refuses_others and not set[str]().union(*filter(None, objects)) <= declared:
        for place, each in enumerate(objects):
            if others := [name for name in each or () if name not in declared]:
                faults[place] = OtherFields(f"has fields that are not declared: {listed(others)}")
    return faults


class Json(LineFormat):
    """Files of JSON."""

    name = "json"
    options = LINE_OPTIONS | VALUE_OPTIONS | {"multiline", "allownofields"}
    lines = JsonLines()

    def encoded(
        self, rows: Rows, columns: Sequence[str], options: Mapping[str, str], schema: Callable[[], pa.Schema]
    ) -> bytes:
        return "".join(json.dumps(row, default=as_text, ensure_ascii=False) + "\n" for row in rows).encode()


FORMAT = Json()
