"""Texts of dates and times: by ISO 8601, or by a format of the user."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from drainmark.jobs.formats.values.patterns import form_of
from drainmark.jobs.formats.values.reader import Reader, matches, where
from drainmark.jobs.formats.values.time_fields import DAY, Form, Moments, TimeFields, minutes_of

_DATE = "(?P<y_>[0-9]{4})-(?P<M_>[0-9]{1,2})-(?P<d_>[0-9]{1,2})"
_CLOCK = r"(?P<H_>[0-9]{1,2}):(?P<m_>[0-9]{1,2})(?::(?P<s_>[0-9]{1,2})(?:\.(?P<S_>[0-9]+))?)?"
_ZONE = "(?P<z_>Z|[+-][0-9]{2}(?::?[0-9]{2})?)"
_ANY = Form(f"{_DATE}(?:[T ]{_CLOCK}{_ZONE}?)?")

# What Arrow reads as it is meant. It refuses a column with a February 29 in a year without one: these are left out.
_USUAL_DATE = (
    "[0-9]{4}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
)
_USUAL_CLOCK = r"[T ](?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{1,6})?)?"
_USUAL_ZONE = "(?:Z|[+-](?:0[0-9]|1[0-7])(?::?[0-5][0-9])?)"
_LOCAL, _INSTANT = pa.timestamp("us"), pa.timestamp("us", "UTC")
# Bytes of the texts that Arrow takes for a column, but for those of an hour without minutes, such as 2024-01-31 12.
_DATE_BYTES = (10,)
_LOCAL_BYTES = (10, 16, 19, *range(21, 27))
_INSTANT_BYTES = (17, 20, *range(22, 33))
_YEAR_1 = (dt.date(1, 1, 1) - dt.date(1970, 1, 1)).days
_AFTER_9999 = (dt.date(9999, 12, 31) - dt.date(1970, 1, 1)).days + 1


_ENDS_IN_ZONE = re.compile(r":[0-9.]+(?:Z|[+-][0-9:]+)\Z")


@dataclass(frozen=True, slots=True)
class _Type:
    """A type of days or times.

    Attributes:
        form: of its texts, if the user sets none.
        of_moment: its value.
        of_moments: its values as integers.
        all_at_once, usual: see `Reader`; the texts that `usual` leaves are read by their form.
    """

    kind: pa.DataType
    form: Form
    of_moment: Callable[[TimeFields], Any]
    of_moments: Callable[[Moments], Any]
    all_at_once: Callable[[pa.Array], pa.Array | None]
    usual: Callable[[pa.Array], pa.Array]


class Formatted(Reader):
    """Texts of `date`, `timestamp` or `timestamp_ntz` that are written by a pattern of the user."""

    def __init__(self, name: str, pattern: str) -> None:
        self.name, self.type, self.form = name, _TYPES[name], form_of(pattern)
        self.kind, self.pattern = self.type.kind, pattern

    def all_at_once(self, texts: pa.Array) -> pa.Array | None:
        return None

    def most(self, texts: pa.Array) -> pa.Array:
        moments = self.form.read_all(texts)
        numbers = self.type.of_moments(moments).astype("int32" if self.name == "date" else "int64")
        return _near(pa.array(numbers, mask=~moments.are_named).cast(self.kind))

    def one(self, text: str) -> Any:
        moment = self.form.read(text)
        try:
            return None if moment is None else self.type.of_moment(moment)
        except OverflowError:  # its offset leads out of the years 1 to 9999
            return None

    def why_not(self, text: str) -> str:
        return f"is no {self.name}: it is not written as {self.pattern}, or there is no such day or time"


class Iso(Formatted):
    """Texts of these types as ISO 8601 writes them; in a `timestamp`, a text without a zone is of UTC."""

    def __init__(self, name: str) -> None:
        self.name, self.type = name, _TYPES[name]
        self.kind, self.form = self.type.kind, self.type.form

    def all_at_once(self, texts: pa.Array) -> pa.Array | None:
        return self.type.all_at_once(texts)

    def most(self, texts: pa.Array) -> pa.Array:
        values = _near(self.type.usual(texts))
        is_open = pc.and_(texts.is_valid(), values.is_null())
        return pc.replace_with_mask(values, is_open, super().most(texts.filter(is_open)))

    def why_not(self, text: str) -> str:
        """Return what the parts of a text tell if it has the form of a time, else what its own form tells."""
        if self.form.read(text) is not None:
            return f"is no {self.name}: in UTC it is outside of the years 0001 to 9999"
        found = _ANY.parts(text)
        return f"is no {self.name}: {_of_parts(found, self.name) if found else _of_form(text, self.name)}"


# --- many -----------------------------------------------------------------------------------------------------------


def _all_dates(texts: pa.Array) -> pa.Array | None:
    return _if_near(pc.cast(texts, pa.date32())) if _have_lengths(texts, _DATE_BYTES) else None


def _all_local(texts: pa.Array) -> pa.Array | None:
    return _if_near(pc.cast(texts, _LOCAL)) if _have_lengths(texts, _LOCAL_BYTES) else None


def _all_instants(texts: pa.Array) -> pa.Array | None:
    """Return instants if all texts have a zone, or none has; Arrow refuses a mixture."""
    if not _ENDS_IN_ZONE.search(pc.first(texts).as_py() or ""):
        local = _all_local(texts)
        return None if local is None else pc.cast(local, _INSTANT)
    values = _if_near(pc.cast(texts, _INSTANT)) if _have_lengths(texts, _INSTANT_BYTES) else None
    are_known = (
        pc.all(pc.ends_with(texts, "Z")).as_py() or pc.all(pc.match_substring_regex(texts, rf"{_USUAL_ZONE}\z")).as_py()
    )
    return values if are_known else None


def _usual_dates(texts: pa.Array) -> pa.Array:
    return pc.cast(where(matches(texts, _USUAL_DATE), texts), pa.date32())


def _usual_local(texts: pa.Array) -> pa.Array:
    return pc.cast(where(matches(texts, f"{_USUAL_DATE}(?:{_USUAL_CLOCK})?"), texts), _LOCAL)


def _usual_instants(texts: pa.Array) -> pa.Array:
    zoned = where(matches(texts, _USUAL_DATE + _USUAL_CLOCK + _USUAL_ZONE), texts)
    return pc.coalesce(pc.cast(_usual_local(texts), _INSTANT), pc.cast(zoned, _INSTANT))


def _have_lengths(texts: pa.Array, allowed: Collection[int]) -> bool:
    """Say whether the bytes of each text are one of the numbers."""
    lengths = pc.binary_length(texts)
    least, most = pc.min_max(lengths).values()
    if least == most:
        return not least.is_valid or least.as_py() in allowed
    return pc.all(pc.is_in(lengths, value_set=pa.array([*allowed, None], lengths.type))).as_py() is True


def _are_near(values: pa.Array) -> pa.Array:
    """Say of each value whether it is in the years 1 to 9999."""
    is_date = pa.types.is_date(values.type)
    numbers, unit = values.cast(pa.int32() if is_date else pa.int64()), 1 if is_date else DAY
    least, end = (pa.scalar(days * unit, numbers.type) for days in (_YEAR_1, _AFTER_9999))
    return pc.and_(pc.greater_equal(numbers, least), pc.less(numbers, end))


def _near(values: pa.Array) -> pa.Array:
    return where(_are_near(values), values)


def _if_near(values: pa.Array) -> pa.Array | None:
    return None if pc.all(_are_near(values)).as_py() is False else values


_TYPES = {
    "date": _Type(
        kind=pa.date32(),
        form=Form(_DATE),
        of_moment=lambda one: one.local.date(),
        of_moments=lambda many: many.local // DAY,
        all_at_once=_all_dates,
        usual=_usual_dates,
    ),
    "timestamp": _Type(
        kind=_INSTANT,
        form=_ANY,
        of_moment=lambda one: one.instant,
        of_moments=lambda many: many.local - many.offset * 60_000_000,
        all_at_once=_all_instants,
        usual=_usual_instants,
    ),
    "timestamp_ntz": _Type(
        kind=_LOCAL,
        form=Form(f"{_DATE}(?:[T ]{_CLOCK})?"),
        of_moment=lambda one: one.local,
        of_moments=lambda many: many.local,
        all_at_once=_all_local,
        usual=_usual_local,
    ),
}


# --- reasons --------------------------------------------------------------------------------------------------------

_FORMATS = {"date": "dateFormat", "timestamp": "timestampFormat", "timestamp_ntz": "timestampNTZFormat"}


def _of_parts(part: Mapping[str, str], name: str) -> str:
    zone = part.get("z", "Z")
    faults = (
        (part["y"] == "0000", "years are 0001 to 9999"),
        (name == "date" and "H" in part, "a time is behind it"),
        (name == "timestamp_ntz" and "z" in part, "it has a zone; declare the column as timestamp"),
        (part.get("S", "")[6:].strip("0") != "", "a time has at most 6 digits behind the second, then zeros"),
        (part.get("H") == "24", "hours end at 23; write 00:00 of the next day"),
        (part.get("s") == "60", "seconds end at 59: leap seconds are not read"),
        (minutes_of(zone) is None, "zones are from -18:00 to +18:00"),
        (name == "date", "there is no such day"),
    )
    return next((fault for is_so, fault in faults if is_so), "there is no such day or time")


def _of_form(text: str, name: str) -> str:
    example = "2024-01-31" if name == "date" else "2024-01-31 12:34:56"
    forms = (
        (r"", "it is empty"),
        (r"\s.*|.*\s", "it has spaces around it"),
        (r"T?\d{1,2}:\d{1,2}.*", "it is a time without a date"),
        (r"[+-]\d{4,}-.*|\d{5,}-\d+-.*", "years are 0001 to 9999"),
        (r"\d{4}-\d{1,2}", "the day is missing"),
        (r"\d{4}-\d{1,2}-\d{1,2}[T ]\d{1,2}([+-].*|Z)?", "its minutes are missing"),
        (r"\d{4}-\d{1,2}-\d{1,2}[T ][\d:]+,\d+.*", "write the fraction of a second with '.'"),
        (r"\d{4}-\d{1,2}-\d{1,2}[T ][\d:.]+ ?(?:[A-Z]\w*(?:/\w+)*|\[.*\])", "write its zone as Z or +01:00"),
        (r"\d{4}-\d{1,2}-\d{1,2}[T ][\d:.]+ [+-][\d:]+", "write its zone without a space before it"),
        (r"\d{4}-\d{1,2}-\d{1,2}[^\d].*", "other text is behind it"),
    )
    hint = next((hint for form, hint in forms if re.fullmatch(form, text, re.ASCII | re.DOTALL)), None)
    return hint or f"write it as {example}, or set {_FORMATS[name]}"
