"""Columns that Drainmark adds to the rows of a stream."""

from __future__ import annotations

SEQUENCE_ID = "_sequence_id"


POSITION = "_position"


SOURCE_FILE = "source_file"


ORDINAL = "_position_ordinal"


TAGS = (SEQUENCE_ID, POSITION, ORDINAL)
"""Columns that tuples of a consistent stream carry: the trigger, the place in the trigger's file, and where a function
makes several rows of one, which all have its place, what orders these (array<bigint>)."""


RESERVED = (*TAGS, SOURCE_FILE)
"""Columns that a source adds to its rows, and so cannot read."""


GONE = "_gone"
"""In the changes of a kept state, where it can lose keys: true in the row that says so."""


RESCUED = "_rescued"
"""Where a source with `on_schema="rescue"` puts what a record has in columns that are not declared: string, JSON."""


CORRUPT = "_corrupt_record"
"""Where Spark's parsers put the text of a row that does not fit the schema; never visible to the author."""
