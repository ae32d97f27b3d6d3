"""Values that a source gives as bytes: how they are declared to become columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """How values that come as bytes become columns; those that do not fit are judged as the rows of files are.

    Attributes:
        column: name of the values among the rows as read.
        format: `text`, `csv` or `json`.
        schema: DDL of their columns; None for text, which stays in one of the same name.
        options: of Spark's reader.
        others: DDL of the types of the other columns, by name.
        strict: see `DirectoryScan`.
        takes_null: a row without a value has nulls, and is not bad.
        place: names a row's `block` and `row`, for people to find it.
    """

    column: str
    format: str
    schema: str | None
    options: Mapping[str, str]
    others: Mapping[str, str]
    on_bad: str
    strict: bool
    takes_null: bool
    place: str = "row {row}"
