"""Formats of dates and times as users write them, for Spark's options: patterns of Java's DateTimeFormatter."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from drainmark.jobs.formats.values.time_fields import DAYS, MONTHS, Form

_NUMBERS = {
    "M": {1: "[0-9]{1,2}", 2: "[0-9]{2}"},
    "d": {1: "[0-9]{1,2}", 2: "[0-9]{2}"},
    "D": {1: "[0-9]{1,3}", 3: "[0-9]{3}"},
    "y": {1: "[0-9]{1,4}", 2: "[0-9]{2}", 4: "[0-9]{4}"},
    **{letter: {1: "[0-9]{1,2}", 2: "[0-9]{2}"} for letter in "HhKkms"},
}
_NAMES = {
    "M": {3: "|".join(name[:3] for name in MONTHS), 4: "|".join(MONTHS)},
    "E": {**dict.fromkeys((1, 2, 3), "|".join(name[:3] for name in DAYS)), 4: "|".join(DAYS)},
    "a": {1: "am|pm"},
}
_ZONES = {
    "X": {1: "Z|[+-][0-9]{2}(?:[0-9]{2})?", 2: "Z|[+-][0-9]{4}", 3: "Z|[+-][0-9]{2}:[0-9]{2}"},
    "x": {1: "[+-][0-9]{2}(?:[0-9]{2})?", 2: "[+-][0-9]{4}", 3: "[+-][0-9]{2}:[0-9]{2}"},
    "Z": {**dict.fromkeys((1, 2, 3), "[+-][0-9]{4}"), 5: "Z|[+-][0-9]{2}:[0-9]{2}"},
}
_SAME = {"u": "y", "L": "M"}
_REFUSED = {
    "G": "leave the era out: years are 0001 to 9999",
    **dict.fromkeys("YwWe", "write the year as yyyy and the day as dd: weeks are not read"),
    **dict.fromkeys("vVzO", "write the zone as XXX, such as +01:00: names of zones are not read"),
    **dict.fromkeys("nNA", "write the fraction of a second as S"),
    **dict.fromkeys("qQ", "write the month as MM"),
    **dict.fromkeys("Fc", "write the day as dd"),
    **dict.fromkeys("pB", "leave it out"),
    **dict.fromkeys("#{}", "quote it, as in '#'"),
}


class Unusable(Exception):
    """A pattern that is not read; the text says which letter, and what to write instead."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a pattern.

    Attributes:
        sort: the letter, `'` for a literal, `[` and `]` for the ends of an optional section.
        text: the literal.
        width: how often the letter is repeated.
    """

    sort: str
    text: str = ""
    width: int = 0

    @property
    def regex(self) -> str:
        return _forms_of(self.sort).get(self.width, "")

    @property
    def is_number(self) -> bool:
        return self.sort == "S" or bool(_NUMBERS.get(self.sort, {}).get(self.width))

    @property
    def has_fixed_width(self) -> bool:
        return self.is_number and "," not in self.regex


@lru_cache(maxsize=256)
def form_of(pattern: str) -> Form:
    """Return the form of texts that are written by a pattern.

    Raises:
        Unusable: see `fault_of`.
    """
    parts = tuple(_parts(pattern))
    _check(parts)
    return Form(_regex(parts), any_case=True)


def fault_of(text: str, option: str = "timestampformat") -> str | None:
    """Return why a pattern is not read by an option, and what to write instead; None if it is read.

    Args:
        option: `dateformat`, `timestampformat` or `timestampntzformat`.
    """
    try:
        form_of(text)
    except Unusable as error:
        return str(error)
    letters = {part.sort for part in _parts(text)}
    if option == "dateformat" and not letters & set("yMdD"):
        return "it has no part of a date: write at least yyyy, MM or dd"
    if option == "timestampntzformat" and letters & set("XxZ"):
        return "it has a zone: leave it out, or declare the column as timestamp and set timestampFormat"
    return None


def _parts(text: str) -> Iterator[Part]:
    if not text:
        raise Unusable("it is empty: leave the option out, or write a pattern such as yyyy-MM-dd")
    rest = text
    while rest:
        first = rest[0]
        if quoted := re.match(r"'((?:[^']|'')*)'", rest):
            yield Part("'", quoted[1].replace("''", "'") or "'")
            rest = rest[quoted.end() :]
            continue
        if first == "'":
            raise Unusable("a quote ' is not closed: write '' for the character itself")
        run = re.match(r"(.)\1*", rest, re.DOTALL)
        width = run.end() if run and first.isascii() and first.isalpha() else 1
        rest = rest[width:]
        yield _letter(first, width) if first.isascii() and first.isalpha() else _sign(first)


def _sign(sign: str) -> Part:
    if sign in _REFUSED:
        raise Unusable(f"{sign!r} is not read: {_REFUSED[sign]}")
    return Part(sign) if sign in "[]" else Part("'", sign)


def _letter(written: str, width: int) -> Part:
    letter = _SAME.get(written, written)
    if letter == "S":
        if width > 9:
            raise Unusable(f"{written * width!r} is not read: a fraction has at most 9 digits, SSSSSSSSS")
        return Part("S", width=width)
    forms = _forms_of(letter)
    if not forms:
        raise Unusable(
            f"the letter {written!r} is not read: {_REFUSED.get(written, 'quote it to mean the letter itself')}"
        )
    if width not in forms:
        usable = " or ".join(written * each for each in sorted(forms))
        raise Unusable(f"{written * width!r} is not read: write {usable}")
    return Part(letter, width=width)


def _forms_of(letter: str) -> dict[int, str]:
    if letter == "S":
        return {width: f"[0-9]{{1,{width}}}" for width in range(1, 10)}
    return {**_NUMBERS.get(letter, {}), **_NAMES.get(letter, {}), **_ZONES.get(letter, {})}


def _check(parts: tuple[Part, ...]) -> None:
    letters = {part.sort for part in parts}
    depth = 0
    for part in parts:
        depth += {"[": 1, "]": -1}.get(part.sort, 0)
        if depth < 0:
            raise Unusable("a ] has no [ before it")
    if depth:
        raise Unusable("a [ has no ] behind it")
    for part, following in itertools.pairwise(part for part in parts if part.sort not in "[]"):
        is_open = part.is_number and not part.has_fixed_width
        if is_open and following.is_number and not (following.has_fixed_width and part.sort != "S"):
            raise Unusable(f"it does not say where {part.sort * part.width!r} ends: write a sign behind it")
    if letters & set("hK") and "a" not in letters:
        raise Unusable("an hour of half a day needs a (AM or PM): write HH for 0 to 23")
    if "a" in letters and not letters & set("hK"):
        raise Unusable("'a' (AM or PM) needs an hour of half a day: write hh")


def _regex(parts: tuple[Part, ...]) -> str:
    pieces = []
    for place, part in enumerate(parts):
        if part.sort == "[":
            pieces.append("(?:")
        elif part.sort == "]":
            pieces.append(")?")
        elif part.sort == "'":
            pieces.append(re.escape(part.text))
        else:
            letter = "Y" if (part.sort, part.width) == ("y", 2) else part.sort
            pieces.append(f"(?P<{letter}{place}>{part.regex})")
    return "".join(pieces)
