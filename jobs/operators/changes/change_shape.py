"""The columns of a stream of changes: keys, payload, and the sequence that orders the changes of a key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drainmark.jobs.frames.names import quoted, quoted_name
from drainmark.jobs.frames.tags import GONE, SEQUENCE_ID

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

BY = "__by"
PLACE = "__place"
DELETES = "__deletes"
TRUNCATES = "__truncates"
ROW = "__row"
OLD = "__old"
WHY = "__why"
"""Columns of changes on their way: the sequence, the place within the id, what the change does, its row, the row that
it replaces, and the reason for which it is refused."""

KEPT_BY, KEPT_TEXT, KEPT_DELETES = "_by", "_by_text", "_deletes"
"""Columns of the state beside those of the output: the sequence; the same as a text, which can be a key; a delete."""
KEPT_DELETED_AT, KEPT_FORGOTTEN = "_deleted_at", "_forgotten"
"""The time or number of the trigger of a delete, if deletes are forgotten, bigint; and of a key whose last change is a
delete, that nothing is remembered of it."""
KEPT_NAMES = (KEPT_BY, KEPT_TEXT, KEPT_DELETES, KEPT_DELETED_AT, KEPT_FORGOTTEN)

KNOWN_PLACE = f"struct(0L as block, {SEQUENCE_ID} as row) as {PLACE}"
"""The place of a change of the state, SQL: by its id, among those before the group, which have the id 0 there."""

VALID_FROM, VALID_TO, IS_CURRENT = "valid_from", "valid_to", "is_current"
VALIDITY = (VALID_FROM, VALID_TO, IS_CURRENT)

_NOT_COMPARED = ("map", "variant", "interval")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeShape:
    """What an operator knows of its changes once it knows their types.

    Attributes:
        keys: key columns.
        columns: of the output, with keys and without `VALIDITY`, with their types.
        by_type: type of a sequence.
        is_float: it is a float, of which 0.0 and -0.0 are one sequence.
        tracked: columns in which a difference begins a new version.
    """

    keys: tuple[str, ...]
    columns: StructType
    by_type: DataType
    is_float: bool
    tracked: tuple[str, ...]

    @property
    def row(self) -> str:
        """Return the SQL of a row's output columns as one struct."""
        return f"struct({', '.join(quoted(self.columns.names))})"

    @property
    def kept_row(self) -> list[str]:
        """Return the SQL of the output columns in the state: of a delete it keeps the keys."""
        return [
            quoted_name(name)
            if name in self.keys
            else f"if({DELETES}, null, {self.of_row(name)}) as {quoted_name(name)}"
            for name in self.columns.names
        ]

    @property
    def text(self) -> str:
        """Return the SQL of a text that is different for different sequences."""
        from pyspark.sql.types import StructType

        if not isinstance(self.by_type, StructType):
            return f"cast({BY} as string)"
        texts = (f"cast({part.sql} as string)" for part in parts_of(BY, self.by_type))
        return f"to_json(array({', '.join(texts)}))"

    def output(self, *, is_history: bool) -> StructType:
        """Return the type of the output: newest rows, or versions."""
        from pyspark.sql.types import BooleanType, LongType, StructType

        made = StructType().add(SEQUENCE_ID, LongType()).add(GONE, BooleanType())
        made = StructType([*made.fields, *self.columns.fields])
        if is_history:
            made = made.add(VALID_FROM, self.by_type).add(VALID_TO, self.by_type).add(IS_CURRENT, BooleanType())
        return made

    def of_row(self, name: str) -> str:
        return f"{ROW}.{quoted_name(name)}"

    def alike(self, left: str, right: str, names: Sequence[str] | None = None) -> str:
        """Return the SQL condition that two structs have the same values in some columns; null equals null."""
        kinds = {field.name: field.dataType.simpleString() for field in self.columns.fields}
        names = self.columns.names if names is None else names
        if len(names) == len(kinds) and not any(odd in kind for kind in kinds.values() for odd in _NOT_COMPARED):
            return f"({left} <=> {right})"
        pairs = []
        for name in names:
            one, other = (f"{side}.{quoted_name(name)}" for side in (left, right))
            if any(odd in kinds[name] for odd in _NOT_COMPARED):
                one, other = f"to_json(struct({one} as v))", f"to_json(struct({other} as v))"
            pairs.append(f"{one} <=> {other}")
        return f"({' and '.join(pairs) or 'true'})"


@dataclass(frozen=True, slots=True)
class Part:
    """A plain value of a sequence."""

    sql: str
    kind: DataType


def parts_of(sql: str, kind: DataType) -> Iterator[Part]:
    """Yield the plain values of an expression: those of the fields, if it is a struct."""
    from pyspark.sql.types import StructType

    if not isinstance(kind, StructType):
        yield Part(sql, kind)
        return
    for field in kind.fields:
        yield from parts_of(f"{sql}.{quoted_name(field.name)}", field.dataType)


def is_ordered(kind: Any) -> bool:
    """Say whether values of a plain type can be put in order, and written as a text that tells them apart."""
    name = kind.typeName()
    return name not in ("array", "map", "variant", "void", "calendarinterval", "geometry", "geography", "object")
