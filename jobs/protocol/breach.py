"""The breach of a rule that rows must obey before they are committed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """A rule of an adopted table, or of a sink outside Delta, that rows break.

    Attributes:
        rule: e.g. `constraint positive`.
        condition: the condition that must be true, as SQL text.
        rows: number of rows that break it.
        first_id: smallest `_sequence_id` among them.
    """

    rule: str
    condition: str
    rows: int
    first_id: int
