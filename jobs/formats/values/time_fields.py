"""Days and times in texts of a known form: the parts that its letters name, and the moment that they make."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MONTHS = tuple(dt.date(2000, month, 1).strftime("%B").lower() for month in range(1, 13))
DAYS = tuple(dt.date(2001, 1, day).strftime("%A").lower() for day in range(1, 8))
DAY = 86_400_000_000
"""Microseconds of a day."""

_HOURS = {"H": (0, 23, 24), "k": (1, 24, 24), "K": (0, 11, 12), "h": (1, 12, 12)}
_FARTHEST = 18 * 60
_NONE = np.int64(-(10**9))


@dataclass(frozen=True, slots=True)
class TimeFields:
    """What a text names. What it leaves out is that of 1970-01-01 00:00:00.

    Attributes:
        local: what calendar and clock show.
        offset: of its zone, in minutes; 0 if it names none.
    """

    local: dt.datetime
    offset: int

    @property
    def instant(self) -> dt.datetime:
        return self.local.replace(tzinfo=dt.UTC) - dt.timedelta(minutes=self.offset)


@dataclass(frozen=True, slots=True)
class Moments:
    """The same for many texts: microseconds from 1970 on, minutes; `are_named` is false where a text names none."""

    local: np.ndarray[Any, np.dtype[np.int64]]
    offset: np.ndarray[Any, np.dtype[np.int64]]
    are_named: np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class Form:
    """The form of a text.

    Attributes:
        regex: of the whole text, in the part of the syntax that RE2 and Python share. Its groups have names
            that begin with their letter: they are Java's, `Y` for a year of two digits, `z` for a zone of ISO 8601.
            Only `a`, `E`, `M` may be words.
        any_case: words and signs may be written in any case.
    """

    regex: str
    any_case: bool = False

    @cached_property
    def _python(self) -> re.Pattern[str]:
        return re.compile(self.regex, re.ASCII | (re.IGNORECASE if self.any_case else 0))

    def parts(self, text: str) -> dict[str, str]:
        """Return the parts of a text by their letters; none if it is not of this form."""
        found = self._python.fullmatch(text)
        return {group[0]: part for group, part in found.groupdict().items() if part} if found else {}

    def read(self, text: str) -> TimeFields | None:
        """Return what a text names; None if it is not of this form, or there is no such day or time."""
        found = self._python.fullmatch(text)
        named: dict[str, int] = {}
        for group, part in found.groupdict().items() if found else ():
            value = _value(group[0], part) if part else None
            if part and (value is None or named.setdefault(_role(group[0]), value) != value):
                return None  # there is no such part, or two sections name different ones
        try:
            return _moment(named) if found else None
        except ValueError:
            return None

    def read_all(self, texts: pa.Array) -> Moments:
        """Return what texts name; not named is also what only `read` can tell."""
        ascii_texts = pc.if_else(pc.string_is_ascii(texts), texts, pa.scalar(None, texts.type))
        flag = "(?i)" if self.any_case else ""  # RE2 would also take letters beyond ASCII for k and s
        found = pc.extract_regex(ascii_texts, rf"{flag}\A(?:{self.regex})\z")
        are_named = _array(found.is_valid())
        named: dict[str, np.ndarray[Any, np.dtype[np.int64]]] = {}
        for group in (found.type.field(place).name for place in range(found.type.num_fields)):
            parts = pc.struct_field(found, group)
            values = _values(group[0], pc.if_else(pc.equal(parts, ""), pa.scalar(None, parts.type), parts))
            are_named &= _array(pc.or_kleene(values.is_valid(), pc.equal(parts, "")).fill_null(False))
            numbers, role = _array(values.cast(pa.int64()).fill_null(_NONE)), _role(group[0])
            known = named.get(role, numbers)
            are_named &= (known == numbers) | (known == _NONE) | (numbers == _NONE)
            named[role] = np.where(known == _NONE, numbers, known)
        return _moments(named, are_named)


def _role(letter: str) -> str:
    return "z" if letter in "XxZ" else "y" if letter == "Y" else letter


def _array(values: pa.Array) -> Any:
    return values.to_numpy(zero_copy_only=False).copy()


# --- parts ----------------------------------------------------------------------------------------------------------


def _value(letter: str, text: str) -> int | None:
    """Return a part as a number: a zone in minutes, a fraction in microseconds; None if there is no such."""
    if letter == "S":
        return None if text[6:].strip("0") else int(text[:6].ljust(6, "0"))
    if letter in "zXxZ":
        return minutes_of(text)
    if letter == "a":
        return 12 * (text.lower() == "pm")
    if text.isdigit():
        return 2000 + int(text) if letter == "Y" else int(text)
    names = MONTHS if letter == "M" else DAYS
    return next(place for place, name in enumerate(names, 1) if name.startswith(text.lower()))


def _values(letter: str, texts: pa.Array) -> pa.Array:
    """Return `_value` of each text."""
    if letter == "S":
        is_long = pc.match_substring_regex(texts, r"\A[0-9]{6}[0-9]*[1-9]")
        digits = pc.utf8_slice_codeunits(pc.utf8_rpad(texts, 6, "0"), 0, 6)
        return pc.if_else(is_long, pa.scalar(None, pa.int64()), pc.cast(digits, pa.int64()))
    if letter in "yMdHhKkmsD" and not pc.any(pc.utf8_is_alpha(texts)).as_py():
        return pc.cast(texts, pa.int64())
    coded = texts.dictionary_encode()  # months, days, zones: few
    values = [_value(letter, text) for text in coded.dictionary.to_pylist()]
    return pa.array(values, pa.int64()).take(coded.indices)


def minutes_of(zone: str) -> int | None:
    """Return the offset of a zone such as Z, +01, +0100 or +01:00; None if there is none."""
    if zone in "Zz":
        return 0
    hours, minutes = int(zone[1:3]), int(zone[3:].lstrip(":") or 0)
    found = hours * 60 + minutes
    if minutes > 59 or found > _FARTHEST:
        return None
    return -found if zone[0] == "-" else found


# --- one ------------------------------------------------------------------------------------------------------------


def _moment(named: Mapping[str, int]) -> TimeFields | None:
    date = _date(named)
    hour = _hour(named)
    if hour is None or named.get("E", date.isoweekday()) != date.isoweekday():
        return None
    clock = dt.time(hour, named.get("m", 0), named.get("s", 0), named.get("S", 0))
    return TimeFields(dt.datetime.combine(date, clock), named.get("z", 0))


def _date(named: Mapping[str, int]) -> dt.date:
    year = named.get("y", 1970)
    if "D" not in named:
        return dt.date(year, named.get("M", 1), named.get("d", 1))
    if named["D"] < 1:
        raise ValueError
    date = dt.date(year, 1, 1) + dt.timedelta(days=named["D"] - 1)
    if (date.year, named.get("M", date.month), named.get("d", date.day)) != (year, date.month, date.day):
        raise ValueError
    return date


def _hour(named: Mapping[str, int]) -> int | None:
    """Return the hour of the day; None if there is none, or letters name different ones."""
    hours = set()
    for letter, (least, most, whole) in _HOURS.items():
        if letter in named:
            if not least <= named[letter] <= most:
                return None
            hours.add(named[letter] % whole + (named.get("a", 0) if whole == 12 else 0))
    return None if len(hours) > 1 else hours.pop() if hours else 0


# --- many -----------------------------------------------------------------------------------------------------------


def _moments(named: Mapping[str, Any], are_named: Any) -> Moments:
    def part(letter: str, default: int) -> Any:
        values = named.get(letter)
        return (
            np.full(len(are_named), default, np.int64) if values is None else np.where(values == _NONE, default, values)
        )

    year, month, day = part("y", 1970), part("M", 1), part("d", 1)
    is_leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    lengths = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])[np.clip(month, 0, 12)]
    are_named &= (year >= 1) & (year <= 9999) & (month >= 1) & (month <= 12)
    are_named &= (day >= 1) & (day <= lengths + (is_leap & (month == 2)))
    days = _days(year, month, day)
    hour, minute, second = np.zeros_like(days), part("m", 0), part("s", 0)
    for letter, (least, most, whole) in _HOURS.items():
        if letter in named:
            written = part(letter, least)
            are_named &= (written >= least) & (written <= most)
            hour = written % whole + (part("a", 0) if whole == 12 else 0)
    are_named &= (minute <= 59) & (second <= 59)
    if "E" in named:
        are_named &= part("E", 0) == (days + 3) % 7 + 1
    if "D" in named or len(named.keys() & _HOURS.keys()) > 1:
        are_named[:] = False  # rare: left to the definition
    local = days * DAY + (hour * 3600 + minute * 60 + second) * 1_000_000 + part("S", 0)
    return Moments(local, part("z", 0), are_named)


def _days(year: Any, month: Any, day: Any) -> Any:
    """Return days from 1970-01-01 on, in the proleptic Gregorian calendar."""
    year = year - (month <= 2)  # years begin in March, so that the leap day is their last
    era, of_era = year // 400, year % 400
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
