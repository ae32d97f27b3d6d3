"""The declaration of how values that a source gives as bytes become columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The declaration of values that come as bytes; a value that does not fit is judged like a row of a file.

    Attributes:
        column: name of the column of the values in the rows as read.
        format: `text`, `csv` or `json`.
        schema: DDL of their columns; None for text, which stays in a column of the same name.
        options: as for files, without those that concern a whole file.
        others: DDL of the types of the other columns, by name.
        takes_null: a row without a value has nulls, and is not bad.
        place: pattern that names a row's `block` and `row`, so that people find it.
    """

    column: str
    format: str
    schema: str | None
    options: Mapping[str, str]
    others: Mapping[str, str]
    on_bad: str
    takes_null: bool
    place: str = "row {row}"
