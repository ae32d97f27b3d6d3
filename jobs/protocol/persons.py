"""Whose rows leave in an erasure: columns and the values that they have, as an operator writes them; pure.

`customer = 17 AND email IN ('a@b.c', 'a@b.org')` names the rows in which each of the columns has one of its values.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from drainmark.jobs.errors import UsageError

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>'(?:[^']|'')*')|(?P<name>`[^`]+`)|(?P<sign>[=(),])|(?P<word>[^\s=(),'`]+))""", re.VERBOSE
)
_LONG_ENOUGH = 5
"""A value of so many letters is looked for in free text; a shorter one, such as 17, would be found everywhere."""


_ATTEMPT = "erasure-"


def attempt_of(token: str) -> str:
    """Return the name of the attempt under which files are written again; no row has an attempt of this name."""
    return f"{_ATTEMPT}{token}"


def is_attempt(attempt: str) -> bool:
    """Say whether an attempt is that of an erasure: rows name its files, and some are in no table."""
    return attempt.startswith(_ATTEMPT)


@dataclass(frozen=True, slots=True)
class Condition:
    """One column, and the values of which it has one, as texts.

    Attributes:
        also: other names that the column has in some tables.
    """

    column: str
    values: tuple[str, ...]
    also: tuple[str, ...] = ()

    def among(self, names: Collection[str]) -> tuple[str, ...]:
        """Return those of the names of the column that a table has."""
        return tuple(name for name in (self.column, *self.also) if name in names)


@dataclass(frozen=True, slots=True)
class Person:
    """The rows that leave: each condition holds for them.

    Attributes:
        conditions: at least one.
    """

    conditions: tuple[Condition, ...]

    @classmethod
    def parse(cls, text: str, also: Sequence[str] = ()) -> Person:
        """Return the person whom a text names: `COLUMN = VALUE` or `COLUMN IN (VALUE, …)`, joined by AND.

        Args:
            also: `COLUMN=NAME`: another name that a column of the text has in some tables.

        Raises:
            UsageError: the text says something else.
        """
        found = tuple(_Reader(text).conditions())
        pairs = [tuple(part.strip().strip("`") for part in pair.partition("=")[::2]) for pair in also]
        known = [each.column for each in found]
        if wrong := [pair for pair, (column, name) in zip(also, pairs, strict=True) if column not in known or not name]:
            msg = f"--also {wrong[0]!r} is not of the form COLUMN=NAME, with a column of --where: {', '.join(known)}"
            raise UsageError(msg, remedy=f"for example: --also {known[0]}=buyer")
        return cls(
            tuple(replace(each, also=tuple(name for column, name in pairs if column == each.column)) for each in found)
        )

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(condition.column for condition in self.conditions)

    def columns_in(self, names: Collection[str]) -> tuple[str, ...]:
        """Return the columns of a table by which the person is found there; none if one of the conditions has none."""
        found = [each.among(names) for each in self.conditions]
        return tuple(name for some in found for name in some) if all(found) else ()

    def digest(self, key: str) -> str:
        """Return a name for the person that tells no value to those who do not have the key.

        Args:
            key: hexadecimal digits.
        """
        said = json.dumps(sorted((each.column, sorted(each.values)) for each in self.conditions))
        return hmac.new(bytes.fromhex(key), said.encode(), hashlib.sha256).hexdigest()[:32]

    @property
    def is_text(self) -> bool:
        """Say whether the person can be looked for in free text, such as a message or a line of a log."""
        return all(len(value) >= _LONG_ENOUGH for each in self.conditions for value in each.values)

    def is_in(self, text: bytes) -> bool:
        """Say whether a text holds a value of each condition, not as a part of a longer word."""
        return all(pattern.search(text) for pattern in self.patterns())

    def patterns(self) -> list[re.Pattern[bytes]]:
        """Return a pattern of bytes for each condition: one of its values, in any of the ways in which it is written.

        A value is found whatever stands beside it that is no letter, no digit and no underscore.
        """
        return [_pattern(each) for each in self.conditions]

    def without(self, text: str) -> str:
        """Return a text in which each value is `[erased]`."""
        for pattern in self.patterns():
            text = pattern.sub(b"[erased]", text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")
        return text


def spellings(value: str) -> tuple[str, ...]:
    """Return a value as it is, as JSON writes it, with and without other letters than ASCII, and as a URL has it."""
    from urllib.parse import quote, quote_plus

    found = [
        value,
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        quote(value),
        quote_plus(value),
    ]
    return tuple(dict.fromkeys(found))


def _pattern(condition: Condition) -> re.Pattern[bytes]:
    written = {spelling for value in condition.values for spelling in spellings(value)}
    either = b"|".join(
        re.escape(text.encode("utf-8", "surrogatepass")) for text in sorted(written, key=len, reverse=True)
    )
    return re.compile(rb"(?<![0-9A-Za-z_])(?:" + either + rb")(?![0-9A-Za-z_])")


class _Reader:
    """Reads the conditions of a text, word by word."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._words = [*self._cut()]
        self._at = 0

    def conditions(self) -> Iterator[Condition]:
        yield self._condition()
        while self._at < len(self._words):
            if self._next().upper() != "AND":
                raise self._refusal()
            yield self._condition()

    def _condition(self) -> Condition:
        column, verb = self._next().strip("`"), self._next().upper()
        if verb == "=":
            return Condition(column, (self._value(),))
        if verb != "IN" or self._next() != "(":
            raise self._refusal()
        values = [self._value()]
        while (sign := self._next()) == ",":
            values.append(self._value())
        if sign != ")":
            raise self._refusal()
        return Condition(column, tuple(values))

    def _value(self) -> str:
        word = self._next()
        if word.startswith("'"):
            word = word[1:-1].replace("''", "'")
        elif word in "=(),":
            raise self._refusal()
        if not word:
            raise UsageError("an empty text names nobody", remedy="name a column with the person's own value")
        return word

    def _next(self) -> str:
        if self._at >= len(self._words):
            raise self._refusal()
        self._at += 1
        return self._words[self._at - 1]

    def _cut(self) -> Iterator[str]:
        at, text = 0, self._text.rstrip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._refusal()
            at = found.end()
            yield found.group().strip()

    def _refusal(self) -> UsageError:
        msg = f"--where {self._text!r} is not of the form COLUMN = VALUE AND COLUMN IN (VALUE, VALUE)"
        return UsageError(msg, remedy='for example: --where "customer = 17", or --where "email = \'a@b.c\'"')
