"""Values that Spark's parsers silently change or leave out.

A decimal with more digits behind the point than are declared is rounded. A time without a date gets the date of the day
on which the file is read, so that no replay gives it again. A field of JSON whose name differs from the declared one
only in case is left out, and the column is null. Here each of them is a fault of its record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from drainmark.jobs.formats.bad_records import CAPS
from drainmark.jobs.formats.csv_dialect import Dialect, fields_of
from drainmark.jobs.formats.values.text_columns import WITHOUT_DATE

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

_WITHOUT_DATE = re.compile(WITHOUT_DATE)
_SHOWN = 64
_DIGITS = re.compile(rb"[0-9]{%d}" % (CAPS.number_digits // 2))


class Literal(str):
    """A number as JSON writes it."""

    __slots__ = ()


_DECODER = json.JSONDecoder(parse_float=Literal, parse_int=Literal, parse_constant=Literal)


@dataclass(frozen=True, slots=True)
class Lossless:
    """The check for records that Spark's parsers would change.

    Attributes:
        columns: names and Spark types, as declared.
        rounds: decimals are to be rounded (`rounding="half_up"`).
        has_formats: the options set the format of times: then a time without a date is always of 1970.
    """

    columns: tuple[tuple[str, DataType], ...]
    rounds: bool = False
    has_formats: bool = False

    @classmethod
    def of(cls, columns: Iterable[tuple[str, DataType]], options: Mapping[str, str], rounding: str | None) -> Lossless:
        """Return the check for columns; the options are those of Spark's reader, names in lower case."""
        return cls(tuple(columns), rounding is not None, "timestampformat" in options)

    def fault_of_csv(self, record: str, dialect: Dialect) -> str | None:
        """Return the fault in the fields of a CSV record, None if there is none."""
        fields = fields_of(record, dialect) if self.matters_in_csv else None
        for (name, kind), text in zip(self.columns, fields or (), strict=False):
            if text and (why := self._fault_of_text(text, kind)):
                return f"column {name!r}: {text[:_SHOWN]!r} {why}"
        return None

    def fault_of_json(self, text: str) -> str | None:
        """Return the fault in a text that is one JSON object or an array of objects, None if there is none."""
        if not self.columns:
            return None
        try:
            value = _DECODER.decode(text)
        except (ValueError, RecursionError):
            return None
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict) and (fault := self._fault_of_fields(each, self.columns, "")):
                return fault
        return None

    @property
    def matters_in_csv(self) -> bool:
        return any(self.is_lossy(kind) or kind.typeName() == "decimal" for _, kind in self.columns)

    def suspects_digits(self, chunk: bytes) -> bool:
        """Say whether lines may have a decimal of more digits than are read; only a look at each record is exact."""
        if not _holds_decimals(self.columns):
            return False
        step = CAPS.number_digits // 2  # a run of so many digits has a place of each step, and all digits behind it
        return any(_DIGITS.match(chunk, at) for at in range(0, len(chunk), step))

    def suspects_csv(self, chunk: bytes, *before: str) -> bool:
        """Say whether lines of CSV may have such a value; only `fault_of_csv` is exact.

        Args:
            before: texts behind which a field may begin: separator and quote.
        """
        pattern = _suspicious(self, before)
        return pattern is not None and pattern.search(chunk) is not None

    def suspects_json(self, rows: pa.Table) -> bool:
        """Say whether JSON, read with the types of `explicit_schema`, may have such a value or name."""
        found = {name: rows.column(name).combine_chunks() for name in rows.column_names}
        return self._suspects_fields(found, self.columns)

    @property
    def explicit_schema(self) -> pa.Schema | None:
        """Return the types of decimals, with which Arrow refuses to round them; None if no decimals matter."""
        return _explicit_schema(self.columns, self.rounds)

    # --- one value ---------------------------------------------------------------------------------------------------

    def is_lossy(self, kind: DataType) -> bool:
        is_decimal = kind.typeName() == "decimal" and not self.rounds
        return is_decimal or (kind.typeName() == "timestamp" and not self.has_formats)

    def _fault_of_text(self, text: str, kind: Any) -> str | None:
        if len(text) > CAPS.number_digits and kind.typeName() == "decimal":
            return f"has more than {CAPS.number_digits} digits"
        name = kind.typeName() if self.is_lossy(kind) else ""
        if name == "decimal" and _digits_behind_point(text) > kind.scale:
            return f"has more digits than {kind.simpleString()} holds"
        if name == "timestamp" and not isinstance(text, Literal) and _WITHOUT_DATE.match(text):
            return "is a time without a date"
        return None

    def _fault_of_fields(
        self, found: Mapping[str, Any], columns: Iterable[tuple[str, DataType]], path: str
    ) -> str | None:
        declared = dict(columns)
        for name in _misspelt(found, declared):
            return f"field {path + name!r} is declared as {_like(name, declared)!r}: names count letter by letter"
        for name, kind in declared.items():
            if (fault := self._fault_of_value(found.get(name), kind, f"{path}{name}")) is not None:
                return fault
        return None

    def _fault_of_value(self, value: Any, kind: Any, path: str) -> str | None:
        if isinstance(value, str):
            why = self._fault_of_text(value, kind)
            return f"field {path!r}: {value[:_SHOWN]!r} {why}" if why else None
        if isinstance(value, dict) and kind.typeName() == "struct":
            return self._fault_of_fields(value, _fields(kind), f"{path}.")
        items, item = _items(value, kind)
        return next((fault for each in items if (fault := self._fault_of_value(each, item, path))), None)

    # --- many values -------------------------------------------------------------------------------------------------

    def _suspects_fields(self, found: Mapping[str, Any], columns: Iterable[tuple[str, DataType]]) -> bool:
        declared = dict(columns)
        folded = {name.casefold() for name in declared}
        if any(name not in declared and name.casefold() in folded for name in found):
            return True  # only a look at each record can tell whether it has the declared name, too
        return any(self._suspects(found[name], kind) for name, kind in declared.items() if name in found)

    def _suspects(self, values: Any, kind: Any) -> bool:
        import pyarrow as pa
        import pyarrow.compute as pc

        name, read = kind.typeName(), values.type
        if name == "struct" and pa.types.is_struct(read):
            found = {field.name: pc.struct_field(values, field.name) for field in read}
            return self._suspects_fields(found, _fields(kind))
        if name == "array" and pa.types.is_list(read):
            return self._suspects(pc.list_flatten(values), kind.elementType)
        if name == "map":  # Arrow cannot tell its keys from the names of a struct
            return self.is_lossy(kind.valueType) or kind.valueType.typeName() in ("struct", "array", "map")
        if name == "timestamp" and not self.has_formats and pa.types.is_string(read):
            return bool(pc.any(pc.match_substring_regex(values, WITHOUT_DATE)).as_py())
        return False


@lru_cache(maxsize=64)
def _holds_decimals(columns: tuple[tuple[str, DataType], ...]) -> bool:
    return any("decimal" in kind.simpleString() for _, kind in columns)


@lru_cache(maxsize=64)
def _suspicious(judge: Lossless, before: Sequence[str]) -> re.Pattern[bytes] | None:
    kinds = [kind for _, kind in judge.columns if judge.is_lossy(kind)]
    scales = [kind.scale for kind in kinds if kind.typeName() == "decimal"]
    begins = "|".join([r"\A", r"[\r\n]", *(re.escape(each) for each in before if each)])
    # A blank at which a field may begin ends the blanks before it, so that no blank is looked at twice.
    blanks = rf"(?:(?!{begins})[\x00-\x20])*+"
    patterns = [rf"(?:{begins}){blanks}(?:T\d|\d++:)"] if len(scales) < len(kinds) else []
    patterns += [rf"\.\d{{{min(scales) + 1}}}|\d\.?[eE][-+]?\d"] if scales else []
    return re.compile("|".join(patterns).encode()) if patterns else None


def _misspelt(found: Mapping[str, Any], declared: Mapping[str, Any]) -> Iterable[str]:
    """Yield names that differ from a declared one only in case, if the declared one is missing."""
    strangers = [name for name in found if name not in declared]
    if strangers:
        folded = {name.casefold(): name for name in declared}
        yield from (name for name in strangers if (near := folded.get(name.casefold())) and near not in found)


def _like(name: str, declared: Iterable[str]) -> str:
    return next(each for each in declared if each.casefold() == name.casefold())


def _digits_behind_point(text: str) -> int:
    """Return how many digits a decimal number needs behind its point; 0 if it is no number: the parser refuses it."""
    try:
        value = Decimal(text.replace(",", ""))
    except InvalidOperation:
        return 0
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or not any(digits):
        return 0
    trailing = len(digits) - len("".join(map(str, digits)).rstrip("0"))
    return -(exponent + trailing)


def _fields(kind: Any) -> list[tuple[str, Any]]:
    return [(field.name, field.dataType) for field in kind.fields]


def _items(value: Any, kind: Any) -> tuple[Iterable[Any], Any]:
    if isinstance(value, list) and kind.typeName() == "array":
        return value, kind.elementType
    if isinstance(value, dict) and kind.typeName() == "map":
        return value.values(), kind.valueType
    return (), None


@lru_cache(maxsize=64)
def _explicit_schema(columns: tuple[tuple[str, Any], ...], rounds: bool) -> pa.Schema | None:
    import pyarrow as pa

    if rounds:
        return None
    fields = [pa.field(name, found) for name, kind in columns if (found := _explicit(kind)) is not None]
    return pa.schema(fields) if fields else None


def _explicit(kind: Any) -> pa.DataType | None:
    """Return the Arrow type of a decimal, or of a list or struct with decimals in it; None if there are none."""
    import pyarrow as pa

    if kind.typeName() == "decimal":
        return pa.decimal128(kind.precision, kind.scale)
    if kind.typeName() == "array":
        inner = _explicit(kind.elementType)
        return pa.list_(inner) if inner is not None else None
    if kind.typeName() == "struct":
        parts = [pa.field(name, found) for name, part in _fields(kind) if (found := _explicit(part)) is not None]
        return pa.struct(parts) if parts else None
    return None
