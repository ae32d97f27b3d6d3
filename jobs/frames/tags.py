"""Columns that Drainmark adds to the rows of a stream."""

from __future__ import annotations

SEQUENCE_ID = "_sequence_id"


POSITION = "_position"


SOURCE_FILE = "source_file"


ORDINAL = "_position_ordinal"


TAGS = (SEQUENCE_ID, POSITION, ORDINAL)
"""Columns of the rows of a consistent stream: the trigger, the place in the trigger's file, and an ordinal
(array<bigint>). The ordinal orders rows of one place: those that a function made of one row, and those of a union."""


RESERVED = (*TAGS, SOURCE_FILE)
"""Columns that a source adds to its rows, and so cannot read."""


GONE = "_gone"
"""Column in the changes of a kept state that can lose keys: true in the row that deletes its key."""


RESCUED = "_rescued"
"""Column for the values of columns that are not declared, if a source has `on_schema="rescue"`: string, JSON."""
