"""Values that Spark's parsers take for others, or leave out, without a word.

A decimal with more digits behind the point than are declared is rounded. A time without a date is that time of the day
on which the file is read, so that no replay gives it again. A field of JSON whose name differs from the declared one in
upper and lower case is left out, and the column is null. Here each of them is a fault of its record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from drainmark.jobs.formats.csv_dialect import Dialect, fields_of
from drainmark.jobs.formats.values.text_columns import WITHOUT_DATE

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

_WITHOUT_DATE = re.compile(WITHOUT_DATE)
_SHOWN = 64


class Literal(str):
    """A number as JSON writes it."""

    __slots__ = ()


_DECODER = json.JSONDecoder(parse_float=Literal, parse_int=Literal, parse_constant=Literal)


@dataclass(frozen=True, slots=True)
class Lossless:
    """Tells which records of some columns Spark's parsers would change.

    Attributes:
        columns: names and Spark types, as declared.
        rounds: decimals are to be rounded (`rounding="half_up"`).
        has_formats: the options say what times look like: then those without a date are of 1970, on any day.
    """

    columns: tuple[tuple[str, DataType], ...]
    rounds: bool = False
    has_formats: bool = False

    @classmethod
    def of(cls, columns: Iterable[tuple[str, DataType]], options: Mapping[str, str], rounding: str | None) -> Lossless:
        """Return the judge of columns; options as Spark's reader has them, names in lower case."""
        return cls(tuple(columns), rounding is not None, "timestampformat" in options)

    def fault_of_csv(self, record: str, dialect: Dialect) -> str | None:
        """Return what is wrong with the fields of a CSV record, None if nothing is."""
        fields = fields_of(record, dialect) if self.matters_in_csv else None
        for (name, kind), text in zip(self.columns, fields or (), strict=False):
            if text and (why := self._fault_of_text(text, kind)):
                return f"column {name!r}: {text[:_SHOWN]!r} {why}"
        return None

    def fault_of_json(self, text: str) -> str | None:
        """Return what is wrong with a text that is one JSON object, or an array of them; None if nothing is."""
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
        return any(self.is_lossy(kind) for _, kind in self.columns)

    def suspects_csv(self, chunk: bytes, *before: str) -> bool:
        """Say whether lines of CSV may have such a value; the check of a line is exact.

        Args:
            before: what a field may begin behind: separator and quote.
        """
        pattern = _suspicious(self, before)
        return pattern is not None and pattern.search(chunk) is not None

    def suspects_json(self, rows: pa.Table) -> bool:
        """Say whether JSON, read with the types of `explicit_schema`, may have such a value or name."""
        found = {name: rows.column(name).combine_chunks() for name in rows.column_names}
        return self._suspects_fields(found, self.columns)

    @property
    def explicit_schema(self) -> pa.Schema | None:
        """Return the types of decimals, which Arrow does not round: it refuses to read them. None where none matter."""
        return _explicit_schema(self.columns, self.rounds)

    # --- one value ---------------------------------------------------------------------------------------------------

    def is_lossy(self, kind: DataType) -> bool:
        is_decimal = kind.typeName() == "decimal" and not self.rounds
        return is_decimal or (kind.typeName() == "timestamp" and not self.has_formats)

    def _fault_of_text(self, text: str, kind: Any) -> str | None:
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
            return True  # whether the same record has the declared one, only a look at each can tell
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
        if name == "map":  # its keys are no names that Arrow could tell from those of a struct
            return self.is_lossy(kind.valueType) or kind.valueType.typeName() in ("struct", "array", "map")
        if name == "timestamp" and not self.has_formats and pa.types.is_string(read):
            return bool(pc.any(pc.match_substring_regex(values, WITHOUT_DATE)).as_py())
        return False


@lru_cache(maxsize=64)
def _suspicious(judge: Lossless, before: Sequence[str]) -> re.Pattern[bytes] | None:
    kinds = [kind for _, kind in judge.columns if judge.is_lossy(kind)]
    scales = [kind.scale for kind in kinds if kind.typeName() == "decimal"]
    begins = "|".join([r"\A", r"[\r\n]", *(re.escape(each) for each in before if each)])
    patterns = [rf"(?:{begins})[\x00-\x20]*(?:T\d|\d+:)"] if len(scales) < len(kinds) else []
    patterns += [rf"\.\d{{{min(scales) + 1}}}|\d\.?[eE][-+]?\d"] if scales else []
    return re.compile("|".join(patterns).encode()) if patterns else None


def _misspelt(found: Mapping[str, Any], declared: Mapping[str, Any]) -> Iterable[str]:
    """Yield names that would be declared ones but for upper and lower case, where those are missing."""
    strangers = [name for name in found if name not in declared]
    if strangers:
        folded = {name.casefold(): name for name in declared}
        yield from (name for name in strangers if (near := folded.get(name.casefold())) and near not in found)


def _like(name: str, declared: Iterable[str]) -> str:
    return next(each for each in declared if each.casefold() == name.casefold())


def _digits_behind_point(text: str) -> int:
    """Return how many digits a decimal number needs behind its point; 0 for what is none, which the parser refuses."""
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
    """Return the Arrow type of a decimal, or of what has decimals in it; None where there are none."""
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
