"""The columns of a stream of changes: keys, payload, and the sequence that orders the changes of a key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.frames.tags import GONE, SEQUENCE_ID

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

BY = "__by"
DELETES = "__deletes"
TRUNCATES = "__truncates"
WHY = "__why"
"""Columns of changes on their way: the sequence, what the change does, and the reason for which it is refused."""

BLOCK, IN_BLOCK = "__block", "__in_block"
"""The place of a change within its id."""

KEPT_BY, KEPT_TEXT, KEPT_DELETES = "_by", "_by_text", "_deletes"
"""Columns of the state beside those of the output: the sequence; the same as a text, which can be a key; a delete."""
KEPT_DELETED_AT, KEPT_FORGOTTEN = "_deleted_at", "_forgotten"
"""The time or number of the trigger of a delete, if deletes are forgotten, bigint; and of a key whose last change is a
delete, that nothing is remembered of it."""
KEPT_NAMES = (KEPT_BY, KEPT_TEXT, KEPT_DELETES, KEPT_DELETED_AT, KEPT_FORGOTTEN)

VALID_FROM, VALID_TO, IS_CURRENT = "valid_from", "valid_to", "is_current"
VALIDITY = (VALID_FROM, VALID_TO, IS_CURRENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeShape:
    """What an operator knows of its changes once it knows their types.

    Attributes:
        keys: key columns.
        columns: of the output, with keys and without `VALIDITY`, with their types.
        by_type: type of a sequence.
        is_float: it is a float, of which 0.0 and -0.0 are one sequence.
        is_history: the output has the versions of each key, else its newest row.
        forgets: deletes are forgotten after a while.
        tracked: columns in which a difference begins a new version.
    """

    keys: tuple[str, ...]
    columns: StructType
    by_type: DataType
    is_float: bool
    is_history: bool
    forgets: bool
    tracked: tuple[str, ...]

    @property
    def tracks_all(self) -> bool:
        """Say whether all columns are tracked, so that a version has the values of its first change."""
        return {*self.keys, *self.tracked} >= {*self.columns.names}

    @property
    def by(self) -> str:
        """Return the column of the state with the sequence."""
        return VALID_FROM if self.is_history else KEPT_BY

    @property
    def deletes(self) -> str:
        """Return the column of the state that says whether a change is a delete."""
        return KEPT_DELETES if self.is_history else GONE

    @property
    def text(self) -> str:
        """Return the SQL of a text that is different for different sequences."""
        from pyspark.sql.types import StructType

        texts = [
            f"decode({part.sql}, 'ISO-8859-1')" if part.kind.typeName() == "binary" else f"cast({part.sql} as string)"
            for part in parts_of(BY, self.by_type)
        ]
        return f"to_json(array({', '.join(texts)}))" if isinstance(self.by_type, StructType) else texts[0]

    @property
    def output(self) -> StructType:
        """Return the type of the output: newest rows, or versions."""
        from pyspark.sql.types import BooleanType, LongType, StructType

        made = StructType().add(SEQUENCE_ID, LongType()).add(GONE, BooleanType())
        made = StructType([*made.fields, *self.columns.fields])
        return self._with_validity(made) if self.is_history else made

    @property
    def kept(self) -> StructType:
        """Return the type of the state."""
        from pyspark.sql.types import BooleanType, LongType, StringType, StructType

        made = StructType([*self.columns.fields])
        if self.is_history:
            made = self._with_validity(made).add(KEPT_TEXT, StringType())
            made = made.add(KEPT_DELETES, BooleanType()).add(GONE, BooleanType())
        else:
            made = made.add(KEPT_BY, self.by_type).add(GONE, BooleanType())
            made = made.add(KEPT_DELETED_AT, LongType()) if self.forgets else made
            made = made.add(KEPT_FORGOTTEN, BooleanType())
        return made.add(SEQUENCE_ID, LongType())

    def _with_validity(self, made: StructType) -> StructType:
        from pyspark.sql.types import BooleanType

        return made.add(VALID_FROM, self.by_type).add(VALID_TO, self.by_type).add(IS_CURRENT, BooleanType())


@dataclass(frozen=True, slots=True)
class SequencePart:
    """A plain value of a sequence."""

    sql: str
    kind: DataType


def parts_of(sql: str, kind: DataType) -> Iterator[SequencePart]:
    """Yield the plain values of an expression: those of the fields, if it is a struct."""
    from pyspark.sql.types import StructType

    if not isinstance(kind, StructType):
        yield SequencePart(sql, kind)
        return
    for field in kind.fields:
        yield from parts_of(f"{sql}.{quoted_name(field.name)}", field.dataType)


def is_ordered(kind: Any) -> bool:
    """Say whether values of a plain type can be put in order, and written as a text that tells them apart."""
    name = kind.typeName()
    return name not in ("array", "map", "variant", "void", "calendarinterval", "geometry", "geography", "object")
