"""JSON lines: one object per line; with `multiLine` a file is one object, or an array of objects."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from drainmark.jobs.formats import json_records
from drainmark.jobs.formats.format import Expected, Lines, Rows, as_text, lines_with_text
from drainmark.jobs.formats.lines.line_format import BLANK, ParsedFormat
from drainmark.jobs.formats.values.value_checks import KINDS, family, times_last

if TYPE_CHECKING:
    import pyarrow as pa


class JsonLines(Lines):
    """Lines of JSON, checked strictly by `json_records`."""

    def has_row_a_record(self, expected: Expected) -> bool:
        """Return `strict`: without it, Spark makes any number of rows of a line that is an array."""
        return expected.strict

    def is_one_document(self, expected: Expected) -> bool:
        return expected.has_multiline

    def records_test(self, expected: Expected) -> Callable[[bytes], bool]:
        return lambda line: bool(line.strip(BLANK) or b"\0" in line)

    def count(self, chunk: bytes, expected: Expected) -> int:
        return lines_with_text(chunk)

    def good_records(self, chunk: bytes, expected: Expected) -> int | None:
        return json_records.good_records(
            chunk, expected.lossless, _names(expected) if expected.refuses_others else None
        )

    def fault_of(self, line: str, expected: Expected) -> str | None:
        fault = json_records.fault_of(line, strict=expected.strict) or self.change_in(line, expected)
        if fault is None and expected.refuses_others:
            return json_records.fault_of_names(line, _names(expected))
        return fault

    def misfit(self, record: str, expected: Expected) -> str | None:
        try:
            value = json.loads(record)
        except (ValueError, RecursionError) as error:
            return f"is no JSON: {error}"
        if not isinstance(value, dict):
            return "is JSON, and no object"
        for name, kind in times_last(expected.columns or (), expected.options):
            allowed = KINDS.get(family(kind.simpleString()))
            found = value.get(name)
            if found is not None and allowed is not None and not allowed(found, kind):
                return f"field {name!r}: {json.dumps(found)[:64]} is no {kind.simpleString()}"
        return None

    def fault_of_document(self, text: str, expected: Expected) -> str | None:
        return json_records.fault_of_document(text) if expected.strict else None

    def may_be_changed(self, expected: Expected) -> bool:
        return True

    def change_in(self, record: str, expected: Expected) -> str | None:
        return expected.lossless.fault_of_json(record)

    def are_good(self, values: Sequence[bytes | None], joined: bytes, expected: Expected) -> bool:
        return self.good_records(joined, expected) == len(values)

    def fault_of_value(self, text: str, expected: Expected) -> str | None:
        return self.fault_of(text, expected) if text.strip() else "is empty"


def _names(expected: Expected) -> frozenset[str]:
    return frozenset(name for name, _ in expected.columns or ())


class Json(ParsedFormat):
    """Files of JSON."""

    name = "json"
    is_judged_by_libraries = True
    lines = JsonLines()

    def cannot_compare(self, expected: Expected) -> str | None:
        is_one_a_line = expected.has_records_in_lines and expected.has_row_a_record
        return None if is_one_a_line else "fields are compared where a record is a line of UTF-8, and strict"

    def cannot_decode(self, expected: Expected) -> tuple[str, str] | None:
        if expected.encoding is None or expected.has_multiline or "linesep" in expected.options:
            return super().cannot_decode(expected)
        return "Spark must be told how lines end", 'add the option "lineSep": "\\n"; for documents, "multiLine": "true"'

    def others_of(self, records: Sequence[bytes], expected: Expected) -> list[str | None]:
        return json_records.others_of(records, _names(expected))

    def encoded(
        self, rows: Rows, columns: Sequence[str], options: Mapping[str, str], schema: Callable[[], pa.Schema]
    ) -> bytes:
        return "".join(json.dumps(row, default=as_text, ensure_ascii=False) + "\n" for row in rows).encode()


FORMAT = Json()
