"""Values as Debezium's connectors write them, as tokens (`json_values`) that say the same exactly.

A connector writes dates, times and decimals as numbers or bytes. Which ones they are, the schema of a message says; if
messages have none, the declared column and the settings of the connector may say it. Nothing is guessed.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

from drainmark.jobs.formats.bad_records import CAPS

PLACEHOLDER = "__debezium_unavailable_value"
"""What PostgreSQL's connector writes for a large value that a change did not touch, and that the log lacks."""

PLACEHOLDER_BYTES = base64.b64encode(PLACEHOLDER.encode()).decode()
_PLACEHOLDER_CODES = [str(code).encode() for code in PLACEHOLDER.encode()]

Schema: TypeAlias = "Mapping[str, Any]"
"""The schema of a field as Kafka Connect's JsonConverter writes it, as tokens: numbers are bytes."""

Reading: TypeAlias = "Callable[[Any], Any]"
"""Returns the token to read for a token other than null; raises `Unclear`."""


class Unclear(Exception):
    """A value has no exact and certain meaning in its column; the text completes "field 'x': …"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Modes:
    """Settings of the connector, as the options of a source tell them.

    Attributes:
        decimals: `decimal.handling.mode`, "string"; None if it is not told.
        times: `time.precision.mode`: "connect", "microseconds" or "nanoseconds"; None if it is not told.
    """

    decimals: str | None = None
    times: str | None = None


DECIMAL_MODES = ("string",)
TIME_MODES = ("connect", "microseconds", "nanoseconds")


def is_placeholder(token: Any) -> bool:
    """Say whether a value is what stands for a value that the log lacks: a text, bytes, an array or a map."""
    if isinstance(token, list):
        return token in ([PLACEHOLDER], _PLACEHOLDER_CODES)
    if isinstance(token, dict):
        return PLACEHOLDER in token
    return token in (PLACEHOLDER, PLACEHOLDER_BYTES)


def reading_of(kind: Any, schema: Schema | None, modes: Modes) -> Reading | None:
    """Return what makes the tokens of a field those of its column; None if they are already.

    Args:
        kind: the Spark type of the column.
        schema: of the field; None if messages have none.
    """
    wanted = kind.typeName()
    nested = _nested(kind, wanted, schema, modes)
    if nested is not None or wanted in ("struct", "array", "map"):
        return nested
    return _without_schema(wanted, modes) if schema is None else _by_schema(wanted, schema)


# --- by the schema --------------------------------------------------------------------------------------------------

_DATES = ("io.debezium.time.Date", "org.apache.kafka.connect.data.Date")
_MOMENTS = {
    "org.apache.kafka.connect.data.Timestamp": 1_000_000,
    "io.debezium.time.Timestamp": 1_000_000,
    "io.debezium.time.MicroTimestamp": 1_000,
    "io.debezium.time.NanoTimestamp": 1,
}
"""Nanoseconds of one unit."""
_TIMES_OF_DAY = {
    "org.apache.kafka.connect.data.Time": 1_000_000,
    "io.debezium.time.Time": 1_000_000,
    "io.debezium.time.MicroTime": 1_000,
    "io.debezium.time.NanoTime": 1,
}
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_VARIABLE = "io.debezium.data.VariableScaleDecimal"
_ISO_WITHOUT_ZONE = ("io.debezium.time.IsoDate", "io.debezium.time.IsoTimestamp")
_WHOLE = ("byte", "short", "integer", "long")
_FLOATING = ("float", "double")
_TIMES = ("date", "timestamp", "timestamp_ntz")


def _by_schema(wanted: str, schema: Schema) -> Reading | None:
    name = str(schema.get("name") or "")
    if name in _DATES:
        return _as({"date": _date, "string": _date}, wanted, "a date: declare date")
    if name in _MOMENTS:
        moment = _moment(_MOMENTS[name])
        known = {"timestamp": moment, "timestamp_ntz": moment, "string": moment}
        return _as(known, wanted, "a time: declare timestamp_ntz or timestamp")
    if name in _TIMES_OF_DAY:
        return _as({"string": _time_of_day(_TIMES_OF_DAY[name])}, wanted, "a time of day: declare string or bigint")
    if name in (_DECIMAL, _VARIABLE):
        number = _number_of_decimal(schema) if name == _DECIMAL else _variable
        known = {"decimal": number, "string": number, **dict.fromkeys((*_WHOLE, *_FLOATING), _characters(number))}
        return _as(known, wanted, "a decimal: declare decimal", keeps=())
    if name in _ISO_WITHOUT_ZONE and wanted in ("date", "timestamp_ntz"):
        return _without_zone
    return _by_type(wanted, str(schema.get("type")))


def _by_type(wanted: str, written: str) -> Reading | None:
    """Return the reading of a field that has a type, and no meaning beside it."""
    if wanted in _TIMES and written != "string":
        return _unclear("a number that the connector does not call a date or a time: declare bigint")
    if written in ("double", "float") and wanted == "decimal":
        return _digits_of_double(15 if written == "double" else 6)
    if (written == "bytes") != (wanted == "binary") and "binary" in (wanted, _BINARY.get(written)):
        if wanted == "binary":
            return _unclear("no bytes: declare string, or set binary.handling.mode=bytes at the connector")
        return _unclear("bytes: declare binary")
    return _floating if wanted in _FLOATING else None


_BINARY = {"bytes": "binary"}


def _as(known: Mapping[str, Reading], wanted: str, said: str, keeps: Sequence[str] = _WHOLE) -> Reading | None:
    """Return the reading for a column; None if it keeps the number as it is written."""
    return known.get(wanted) or (None if wanted in keeps else _unclear(said))


def _unclear(said: str) -> Reading:
    def raised(token: Any) -> Any:
        raise Unclear(f"it is {said}")

    return raised


# --- without a schema -----------------------------------------------------------------------------------------------

_SCHEMAS = "set value.converter.schemas.enable=true at the connector"
_UNITS = {"connect": 1_000_000, "microseconds": 1_000, "nanoseconds": 1}


def _without_schema(wanted: str, modes: Modes) -> Reading | None:
    readings: Mapping[str, Reading] = {
        "date": _date_or_text,
        **dict.fromkeys(("timestamp", "timestamp_ntz"), _moment_or_text(modes)),
        "decimal": _decimal_or_text(modes),
        **dict.fromkeys(_FLOATING, _floating),
        **dict.fromkeys(_WHOLE, lambda token: _characters(_variable)(token) if isinstance(token, dict) else token),
    }
    return readings.get(wanted)


def _date_or_text(token: Any) -> Any:
    """Return a date: a number is one of days, since every connector writes dates so, or as texts."""
    return _date(token) if isinstance(token, bytes) else _without_zone(token)


def _moment_or_text(modes: Modes) -> Reading:
    def read(token: Any) -> Any:
        if not isinstance(token, bytes):
            return token
        if modes.times is None:
            raise Unclear(
                f"{token.decode()[:64]} is a number of milliseconds, microseconds or nanoseconds, and the message has"
                f" no schema that says of which: {_SCHEMAS}, or time.precision.mode=isostring; or, if it is set to"
                f' {", ".join(TIME_MODES)}, the option "timePrecisionMode" at the source; or declare bigint'
            )
        return _moment(_UNITS[modes.times])(token)

    return read


def _decimal_or_text(modes: Modes) -> Reading:
    def read(token: Any) -> Any:
        if isinstance(token, dict):
            return _variable(token)
        if not isinstance(token, str) or modes.decimals == "string" or not _may_be_base64(token):
            return token
        raise Unclear(
            f"{token[:64]!r} may be the bytes of a number, and the message has no schema with its scale: {_SCHEMAS}; or"
            ' set decimal.handling.mode=string there, and options={"decimalHandlingMode": "string"} at the source'
        )

    return read


def _may_be_base64(text: str) -> bool:
    try:
        return bool(base64.b64decode(text, validate=True))
    except (ValueError, binascii.Error):
        return False


# --- single values --------------------------------------------------------------------------------------------------

_EPOCH_DAY, _LAST_DAY = dt.date(1970, 1, 1).toordinal(), dt.date.max.toordinal()
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - a time without a zone, as the connector writes it
_NANOS_OF_DAY = 86_400 * 10**9


def _whole(token: Any) -> int:
    if not isinstance(token, bytes) or not token.lstrip(b"-").isdigit():
        shown = token.decode() if isinstance(token, bytes) else repr(token)
        raise Unclear(f"{shown[:64]} is no whole number, as the connector writes a date or a time")
    return int(token[:32])  # far more digits than any time has


def _date(token: Any) -> str:
    day = _EPOCH_DAY + _whole(token)
    if not 1 <= day <= _LAST_DAY:
        raise Unclear(f"{token.decode()[:32]} days since 1970 are no date of the years 0001 to 9999")
    return dt.date.fromordinal(day).isoformat()


def _moment(nanos: int) -> Reading:
    """Return what makes a text of a number of units, each of so many nanoseconds, since 1970."""

    def read(token: Any) -> str:
        micros, rest = divmod(_whole(token) * nanos, 1000)
        if rest:
            raise Unclear(f"{token.decode()} nanoseconds are no whole number of microseconds, which a column has")
        try:
            return (_EPOCH + dt.timedelta(microseconds=micros)).isoformat()
        except OverflowError:
            raise Unclear(f"{token.decode()[:32]} is no time of the years 0001 to 9999") from None

    return read


def _time_of_day(nanos: int) -> Reading:
    def read(token: Any) -> str:
        told = _whole(token) * nanos
        if not 0 <= told <= _NANOS_OF_DAY:
            raise Unclear(f"{token.decode()[:32]} is no time of a day")
        seconds, rest = divmod(told, 10**9)
        whole = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        return f"{whole}.{rest:09}".rstrip("0") if rest else whole

    return read


def _without_zone(token: Any) -> Any:
    return token.removesuffix("Z") if isinstance(token, str) else token


def _floating(token: Any) -> Any:
    """Return a number; JSON has no other way to write those three than as texts."""
    return token.encode() if token in ("NaN", "Infinity", "-Infinity") else token


def _digits_of_double(most: int) -> Reading:
    """Return what takes only numbers of so few digits that a floating number keeps them."""

    def read(token: Any) -> Any:
        digits = token.lower().partition(b"e")[0].strip(b"-").replace(b".", b"") if isinstance(token, bytes) else b""
        if len(digits.strip(b"0")) > most:
            raise Unclear(
                f"{token.decode()[:64]} has more digits than the connector's floating numbers keep: set"
                " decimal.handling.mode=string or precise there, or declare double"
            )
        return token

    return read


def _number_of_decimal(schema: Schema) -> Reading:
    parameters = schema.get("parameters")
    scale = parameters.get("scale") if isinstance(parameters, dict) else None

    def read(token: Any) -> Any:
        return _unscaled(token, scale) if isinstance(token, str) else token  # decimal.format=NUMERIC writes numbers

    return read


def _variable(token: Any) -> Any:
    if not isinstance(token, dict) or token.keys() != {"scale", "value"}:
        raise Unclear("it is no decimal of a variable scale, which has a scale and a value")
    return _unscaled(token["value"], token["scale"])


def _characters(number: Reading) -> Reading:
    """Return a number as JSON writes numbers; a point with zeros behind it is left out."""

    def read(token: Any) -> Any:
        found = number(token)
        if isinstance(found, str):
            found = found.encode()
        return found.rstrip(b"0").rstrip(b".") if b"." in found and b"e" not in found.lower() else found

    return read


def _unscaled(token: Any, scale: Any) -> str:
    """Return a decimal as text: its digits are a number of two's complement in base64, the scale a number or a text."""
    told = scale.decode() if isinstance(scale, bytes) else scale
    try:
        places, digits = int(told), base64.b64decode(token, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise Unclear(f"its bytes {str(token)[:64]!r} and scale {str(told)[:16]!r} are no decimal") from None
    if not digits or len(digits) > CAPS.number_digits // 4 or abs(places) > CAPS.number_digits:
        raise Unclear("it is a decimal of no digits, or of more than are read")
    number = int.from_bytes(digits, "big", signed=True)
    value = Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -places))
    return format(value, "f")


# --- nested values --------------------------------------------------------------------------------------------------


def _nested(kind: Any, wanted: str, schema: Schema | None, modes: Modes) -> Reading | None:
    """Return the reading of objects and arrays, None if their parts are read as they are."""
    if wanted == "struct":
        return fields_reading([(field.name, field.dataType) for field in kind.fields], fields_of_schema(schema), modes)
    if wanted == "array":
        item = reading_of(kind.elementType, _part(schema, "items"), modes)
        return None if item is None else lambda token: _each(token, item)
    if wanted == "map":
        value = reading_of(kind.valueType, _part(schema, "values"), modes)
        return None if value is None else lambda token: _each_value(token, value)
    return None


def _part(schema: Schema | None, name: str) -> Schema | None:
    part = schema.get(name) if schema is not None else None
    return part if isinstance(part, dict) else None


def _each(token: Any, read: Reading) -> Any:
    return [None if each is None else read(each) for each in token] if isinstance(token, list) else token


def _each_value(token: Any, read: Reading) -> Any:
    if not isinstance(token, dict):
        return token
    return {name: None if each is None else read(each) for name, each in token.items()}


def fields_of_schema(schema: Schema | None) -> Mapping[str, Schema] | None:
    """Return the schemas of the fields of a struct by name; None if there is no schema."""
    fields = schema.get("fields") if schema is not None else None
    if not isinstance(fields, list):
        return None
    return {str(each.get("field")): each for each in fields if isinstance(each, dict)}


def fields_reading(
    columns: Sequence[tuple[str, Any]], schemas: Mapping[str, Schema] | None, modes: Modes
) -> Reading | None:
    """Return what makes the tokens of an object those of its columns; None if they are already.

    It raises `Unclear` that names the field.
    """
    found = {
        name: read
        for name, kind in columns
        if (read := reading_of(kind, schemas.get(name) if schemas is not None else None, modes)) is not None
    }

    def read_all(token: Any) -> Any:
        if not isinstance(token, dict):
            return token
        changed = {}
        for name, read in found.items():
            if (value := token.get(name)) is not None:
                try:
                    changed[name] = read(value)
                except Unclear as unclear:
                    raise Unclear(f"field {name!r}: {unclear}") from None
        return {**token, **changed} if changed else token

    return read_all if found else None
