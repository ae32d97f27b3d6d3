"""Whose rows leave in an erasure: the conditions that hold for them, and the ways to write their values; pure."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from drainmark.jobs.errors import UsageError
from drainmark.jobs.protocol.row_conditions import Condition, conditions

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
class Person:
    """The rows that leave: each condition holds for them.

    Attributes:
        conditions: at least one.
    """

    conditions: tuple[Condition, ...]

    @classmethod
    def parse(cls, *texts: str, also: Sequence[str] = ()) -> Person:
        """Return the person whom some conditions name; see `row_conditions`.

        Args:
            also: `COLUMN=NAME`: another name that a column of the conditions has in some tables.

        Raises:
            UsageError: a text says something else, or gives an empty value.
        """
        found = conditions(texts)
        if any("" in each.values for each in found):
            raise UsageError("an empty text names nobody", remedy="name a column with the person's own value")
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
    """Return a value as it is, as CSV writes it between quotes, as JSON does, with and without other letters than
    ASCII, and as a URL has it."""
    from urllib.parse import quote, quote_plus

    found = [
        value,
        value.replace('"', '""'),
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
