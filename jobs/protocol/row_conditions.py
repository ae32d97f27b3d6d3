"""Conditions on rows, as an operator writes them behind `--where`; pure.

`customer = 17 AND email IN ('a@b.c', 'a@b.org')` means the rows in which each of the columns has one of its values. A
value with blanks or signs stands between single quotes, and a column with blanks between backticks.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from drainmark.jobs.errors import UsageError

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>'(?:[^']|'')*')|(?P<name>`[^`]+`)|(?P<sign>[=(),])|(?P<word>[^\s=(),'`]+))""", re.VERBOSE
)
_ODD_COLUMN, _ODD_VALUE = re.compile(r"""['"<>!~]"""), re.compile(r"""["<>!~`=(),]""")
"""A column that has, or a value that begins with, one of these signs may be a comparison of another kind."""

_MEANT = re.compile(
    r"""`?([^\W\d][\w.-]*(?: [\w.-]+)*)`? *= *(?:'((?:[^']|'')*)'|"([^"]*)"|([^'"`<>!~=(].*)|)""", re.DOTALL
)
"""What may be meant as one column and one value: of a value in quotes, all that is in them."""

_OPERATOR = re.compile(r"\b(?:AND|OR|NOT|IN|LIKE|IS|BETWEEN)\b", re.IGNORECASE)


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


def conditions(texts: Sequence[str]) -> tuple[Condition, ...]:
    """Return the conditions of some texts, which must all hold.

    Raises:
        UsageError: a text says something else, or a column is in two conditions.
    """
    found = tuple(condition for text in texts for condition in _Reader(text).conditions())
    columns = [each.column for each in found]
    for column in columns:
        if columns.count(column) > 1:
            msg = f"--where names the column {column!r} twice, and a row has one value there"
            raise UsageError(msg, remedy=f'to mean several values: --where "{column} IN (VALUE, VALUE)"')
    return found


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
        column, verb = self._next(), self._next().upper()
        if _ODD_COLUMN.search(column) and not column.startswith("`"):
            raise self._refusal()
        column = column.strip("`")
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
            return word[1:-1].replace("''", "'")
        if _ODD_VALUE.match(word):
            raise self._refusal()
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
        meant = _MEANT.fullmatch(self._text.strip())
        if meant is None or _OPERATOR.search(meant[1]) or _OPERATOR.search(meant[4] or ""):
            remedy = "for example: --where \"customer IN (17, 18)\", or --where \"name = 'Ann O''Neil'\""
        else:
            column, quoted, doubly, plain = meant.groups()
            value = quoted if quoted is not None else (doubly or plain or "").replace("'", "''")
            example = f"{column if column.isidentifier() else f'`{column}`'} = '{value}'"
            shown = shlex.quote(example) if re.search(r'["$`\\!]', example) else f'"{example}"'
            remedy = f"if that is one value: --where {shown}"
        return UsageError(msg, remedy=remedy)
