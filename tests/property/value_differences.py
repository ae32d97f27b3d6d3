"""Where Drainmark reads a text otherwise than Spark's casts: each difference has a name and a reason.

Most of them are repairs: Spark takes the text for the repaired one, which Drainmark wants to be written so.
"""

from __future__ import annotations

import itertools
import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

Repair = Callable[[str, str], str]
"""A text and the name of its type, without parameters -> the text that Spark takes it for."""
_TIMES = ("date", "timestamp", "timestamp_ntz")
_CLOCK = r"\d{1,2}:\d{1,2}(?::\d{1,2}(?:\.\d*)?)?"
_ZONE = r"(?:Z|[+-]\d{1,2}(?::?\d{1,2}){0,2})"


def _only(kinds: tuple[str, ...], pattern: str, into: str | Callable[[re.Match[str]], str]) -> Repair:
    compiled = re.compile(pattern, re.ASCII | re.DOTALL)
    return lambda text, kind: compiled.sub(into, text, count=1) if kind in kinds else text


def _ascii_digits(text: str, kind: str) -> str:
    return "".join(str(unicodedata.decimal(sign, sign)) for sign in text) if kind == "decimal" else text


def _named(text: str, kind: str) -> str:
    names = {"nan": "NaN", "inf": "Inf", "infinity": "Infinity"}
    sign, name = re.fullmatch(r"([+-]?)(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    return sign + names.get(name.lower(), name) if kind in ("float", "double") else text


def _hexadecimal(text: str, kind: str) -> str:
    is_one = kind in ("float", "double") and re.fullmatch(r"[+-]?0[xX][0-9a-fA-F.]+[pP][+-]?\d+[dDfF]?", text)
    return repr(float.fromhex(text.rstrip("dDfF") if is_one else text)) if is_one else text


def _boolean(text: str, kind: str) -> str:
    words = {**dict.fromkeys(("t", "y", "yes", "1"), "true"), **dict.fromkeys(("f", "n", "no", "0"), "false")}
    return words.get(text.lower(), text) if kind == "boolean" else text


def _full_zone(found: re.Match[str]) -> str:
    return f"{found[1]}0{found[2]}:{(found[3] or '0'):0>2}"


REPAIRS: Mapping[str, tuple[str, Repair]] = {
    "trimmed": ("a space is part of the text", lambda text, kind: text.strip("".join(map(chr, range(0x21))) + "\x7f")),
    "suffix": ("1d is no number outside of Java", _only(("float", "double"), r"(?<=[0-9.])[dDfF]\Z", "")),
    "hexadecimal": ("no file means it", _hexadecimal),
    "names": ("NaN, Infinity and Inf are written so, as Spark writes them", _named),
    "digits": ("digits of other scripts are no numbers in the other types", _ascii_digits),
    "booleans": ("1 and y are no booleans: a column of numbers or letters may be declared wrongly", _boolean),
    "A1": ("text behind a date is another datum", _only(("date",), r"\A([+-]?\d+-\d{1,2}-\d{1,2})[T ].*", r"\1")),
    "partial year": ("a year is no day", _only(_TIMES, r"\A([+-]?\d{4,7})\Z", r"\1-01-01")),
    "partial month": ("a month is no day", _only(_TIMES, r"\A([+-]?\d{4,7}-\d{1,2})\Z", r"\1-01")),
    "signed year": ("years have four digits", _only(_TIMES, r"\A\+?0*(\d{4}-)", r"\1")),
    "hour alone": ("an hour is no time", _only(_TIMES[1:], r"([T ]\d{1,2})(?=Z|[+-]|\Z)", r"\1:00")),
    "bare point": ("a point has digits behind it", _only(_TIMES[1:], r"(:\d{1,2})\.(?=\D|\Z)", r"\1")),
    "nanoseconds": ("digits are lost", _only(_TIMES[1:], r"(\.\d{6})\d+", r"\1")),
    "zone of another": ("a time without zone has none", _only(("timestamp_ntz",), rf"({_CLOCK}) ?{_ZONE}\Z", r"\1")),
    "zone behind a space": ("ISO 8601 writes none", _only(_TIMES[1:], rf" ({_ZONE})\Z", r"\1")),
    "short zone": ("zones have two digits", _only(_TIMES[1:], r"([+-])(\d)(?::(\d{1,2}))?\Z", _full_zone)),
    "short minutes": ("zones have two digits", _only(_TIMES[1:], r"([+-]\d{2}):(\d)\Z", r"\1:0\2")),
    "zones by name": ("a name depends on tables of zones", _only(_TIMES[1:], rf"({_CLOCK}) ?(?:UTC|GMT|UT)\Z", r"\1Z")),
}  # fmt: skip


@dataclass(frozen=True)
class Seen:
    """A text in a column of a type, whose name has no parameters; days or microseconds for times."""

    text: str
    kind: str
    ours: Any
    spark: Any

    @property
    def is_sparks(self) -> bool:
        return self.ours is None and self.spark is not None

    @property
    def is_ours(self) -> bool:
        return self.spark is None


def _is_overflow(seen: Seen) -> bool:
    is_lost = seen.is_sparks and seen.kind in ("float", "double") and (math.isinf(seen.spark) or seen.spark == 0)
    return is_lost and re.search(r"\A[^eE]*[1-9]", seen.text) is not None


def _is_far(seen: Seen) -> bool:
    if not seen.is_sparks or seen.kind not in _TIMES:
        return False
    days = seen.spark if seen.kind == "date" else seen.spark // 86_400_000_000
    return not -719_162 <= days <= 2_932_896


def _is_today(seen: Seen) -> bool:
    return seen.is_sparks and seen.kind == "timestamp" and re.match(r"T\d|\d+:", seen.text) is not None


def _has_named_zone(seen: Seen) -> bool:
    return seen.is_sparks and seen.kind in _TIMES and re.search(r"\d ?[A-Z]\w*[/+-][\w:]+\Z", seen.text) is not None


def _is_zero(seen: Seen) -> bool:
    return seen.is_ours and seen.kind == "decimal" and seen.ours == 0 and "e" in seen.text.lower()


def _has_short_clock(seen: Seen) -> bool:
    is_one = seen.is_ours and seen.kind == "timestamp"
    return is_one and re.search(rf"[T ]\d{{1,2}}:\d{{1,2}}{_ZONE}\Z", seen.text) is not None


def _has_zone_with_seconds(seen: Seen) -> bool:
    is_one = seen.is_sparks and seen.kind == "timestamp"
    return is_one and re.search(r"[+-]\d{1,2}:\d{1,2}:\d{1,2}\Z", seen.text) is not None


NAMED: Mapping[str, tuple[str, Callable[[Seen], bool]]] = {
    "seconds of a zone": ("no zone has them today", _has_zone_with_seconds),
    "overflow, underflow": ("the value is another one", _is_overflow),
    "far years": ("Python, databases and most readers hold 1 to 9999", _is_far),
    "RT5": ("a time without a date is of the day on which it is read", _is_today),
    "named zone": ("a name depends on tables of zones", _has_named_zone),
    "zero with an exponent": ("zero is zero; Spark refuses exponents that it cannot hold", _is_zero),
    "zone behind minutes": ("ISO 8601 allows it, and Spark reads 12:34 as well", _has_short_clock),
}


def names_of(seen: Seen, value_of: Callable[[str], Any], rounded: Callable[[str], Any]) -> tuple[str, ...]:
    """Return the names that explain a difference; none if nothing does.

    Args:
        value_of: our value of another text; `rounded`: with rounding="half_up".
    """
    for text, repairs in _repaired(seen.text, seen.kind):
        written = replace(seen, text=text, ours=value_of(text))
        if repairs and repr(written.ours) == repr(seen.spark):
            return repairs
        for name, (_, holds) in NAMED.items():
            if repr(written.ours) != repr(seen.spark) and holds(written):
                return (*repairs, name)
        if isinstance(seen.spark, Decimal) and repr(rounded(text)) == repr(seen.spark):
            return (*repairs, "RT11")
    return ()


def _repaired(text: str, kind: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the text, and all texts that repairs, one after the other, make of it."""
    found: dict[str, tuple[str, ...]] = {text: ()}
    front = [text]
    while front:
        yield from ((each, found[each]) for each in front)
        made = (
            (repair(each, kind), (*found[each], name))
            for each, (name, (_, repair)) in itertools.product(front, REPAIRS.items())
        )
        front = [each for each, names in made if found.setdefault(each, names) is names]
